"""What methods and the landscape share: curves, subspaces and batch norm in weight space."""
