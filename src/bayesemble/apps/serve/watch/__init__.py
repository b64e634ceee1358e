"""Watching: whether the rows that come in are still like those that a run was made from."""
