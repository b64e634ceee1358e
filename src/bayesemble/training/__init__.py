"""From data to a fitted ensemble, and to disk and back."""
