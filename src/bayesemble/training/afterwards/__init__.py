"""What becomes of a trained ensemble: calibrated by held-out rows, distilled, handed to other libraries."""
