"""The loss landscape of an ensemble: pure functions of a fitted ensemble and data, each with a small result."""
