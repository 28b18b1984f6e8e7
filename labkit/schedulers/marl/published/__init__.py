"""MARL as published: what an agent sees (`graphs`, `state`), how it decides (`slot`, `network`), and its files.

Nothing here needs torch; networks learn in `labkit.learning.marl.published`.
"""

from labkit.schedulers.marl.published.form import Form
from labkit.schedulers.marl.published.scheduler import PublishedMarl
from labkit.schedulers.marl.published.weights import MarlWeights, load_published

__all__ = ["Form", "MarlWeights", "PublishedMarl", "load_published"]
