"""Figures: every function draws one result, `plot_x(result, ax=None) -> ax`. They need the extra `plots`."""
