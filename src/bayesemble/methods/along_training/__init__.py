"""Networks gathered along training: SWAG, snapshots, cyclical SG-MCMC, subspaces."""
