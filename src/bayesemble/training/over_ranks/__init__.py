"""Runs whose members are held by several processes: what they cannot do, tell one another and save."""
