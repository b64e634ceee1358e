"""The Laplace approximation and the curvature it is made of."""
