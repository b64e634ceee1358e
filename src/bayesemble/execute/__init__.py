"""Executors: how members are run."""
