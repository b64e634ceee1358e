"""How members begin: fresh, with given weights, or where networks from elsewhere stand."""
