"""Training on top of a frozen backbone: what it gives is found once for all members, and adapters are saved alone."""
