"""MARL as published: what an agent sees (`graphs`, `state`), how it decides (`slot`, `network`), and its files.

Nothing here needs torch; networks learn in `labkit.learning.marl.published`.
"""
