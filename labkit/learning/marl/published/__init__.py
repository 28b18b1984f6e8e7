"""MARL as published, each part a file: convolution (`ecc`), networks, switches, learner (A2C), trainer, environment.

What an agent sees, its masks and how it decides are in `labkit.schedulers.marl.published`, which needs no torch.
"""
