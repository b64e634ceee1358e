"""What clients of the service see: JSON, the Open Inference Protocol, metrics and pages."""
