"""A run on machines: its backend, its jobs, and their events."""
