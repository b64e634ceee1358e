"""How members run and move: one by one or all at once."""
