"""How training steps are taken: in Python, from a record or compiled; all members at once or some after the others."""
