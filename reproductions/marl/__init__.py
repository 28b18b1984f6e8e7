"""MARL as published: what an agent sees (`graphs`, `slot`), how it decides (`policy`, `scheduler`), and its training.

`switches` say how the text is read; `learner` has the convolution, the networks and A2C, `episode` an episode and the
environment of Gymnasium, `trainer` joins them.
"""

from reproductions.marl.command import published_trainer
from reproductions.marl.scheduler import FILES, MarlWeights, PublishedMarl, load_published
from reproductions.marl.switches import Published

__all__ = ["WEIGHTS", "MarlWeights", "Published", "PublishedMarl", "load_published", "published_trainer"]

WEIGHTS = FILES, load_published
