"""What is inferred: a network, how its outputs are read, what is believed beforehand."""
