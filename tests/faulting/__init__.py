"""Faults that are done to the library on purpose: one file for each kind, see `tests/faults.py`."""
