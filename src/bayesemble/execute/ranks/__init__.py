"""Members on several processes: who holds which of them, and what they tell one another."""
