"""What `benchmarks/speed.py` measures: each module has a few of its parts."""
