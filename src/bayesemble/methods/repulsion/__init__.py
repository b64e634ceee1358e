"""Members that feel one another: repulsion and SVGD, in the space of weights or of functions."""

from bayesemble.methods.repulsion import density_scores as scores

__all__ = ["scores"]
