"""A run on machines: its backend, its jobs, and what they tell."""
