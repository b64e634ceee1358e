"""Curvature of the log likelihood, and the Gaussians that it makes: for Laplace approximations."""
