"""Implicit ensembles: distributions over the parameters of an unchanged network."""
