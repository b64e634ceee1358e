"""Other ways to train an ensemble, each a script that an interpreter of its own runs; `client.py` talks to them."""
