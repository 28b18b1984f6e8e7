"""DL2 as published, each part a file: switches, networks, warm-up, replay, updates, and the trainer that joins them.

Exploration is in `labkit.schedulers.dl2.flat`, with what the network sees and how it decides.
"""
