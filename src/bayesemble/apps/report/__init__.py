"""Pages that a person reads: a comparison, a landscape."""
