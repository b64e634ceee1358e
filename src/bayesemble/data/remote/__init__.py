"""Rows that are elsewhere: files at an address, brought here when they are read."""
