"""The service: runs on tables behind HTTP, whose answers say their doubt."""
