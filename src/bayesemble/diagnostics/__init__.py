"""What a fitted ensemble is like, and what training one takes."""
