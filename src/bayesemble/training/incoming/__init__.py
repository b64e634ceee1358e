"""What was made elsewhere: trained networks, and data that come as mappings, from loaders or as streams."""
