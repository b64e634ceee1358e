"""What a fitted ensemble is like."""
