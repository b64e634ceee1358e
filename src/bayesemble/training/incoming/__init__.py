"""What was made elsewhere: networks that are trained already, and data that come as mappings, from loaders or as streams."""
