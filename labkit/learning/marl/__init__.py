"""Training MARL; `published` is the system as it was published."""
