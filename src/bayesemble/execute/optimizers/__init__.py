"""How members move: optimisers over stacked leaves, those of torch among them, and rates by member and by leaf."""
