"""DL2's own network."""
