"""Colours of schedulers can be told apart, on white paper and on dark."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from labkit.plots.palette import COLOURS
from labkit.schedulers import available

LINEAR_TO_LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
LMS_TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def oklab(colour: str) -> np.ndarray:
    """Return lightness and two axes of colour, in which equal distances look alike (Ottosson, 2020)."""
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return np.array(LMS_TO_LAB) @ np.cbrt(np.array(LINEAR_TO_LMS) @ linear)


def test_policies_of_gavel_can_be_told_apart():
    mine = {name: oklab(shade) for name, shade in COLOURS.items() if name.startswith("gavel_")}
    near = {(a, b): np.linalg.norm(mine[a] - mine[b]) for a, b in combinations(mine, 2)}
    assert min(near.values()) > 0.09, min(near, key=near.__getitem__)
    assert all(0.4 < lab[0] < 0.8 for lab in mine.values()), "neither black on dark paper nor white on white"


def test_each_policy_of_gavel_has_its_colour():
    policies = {name for name in available() if name.startswith("gavel_") and not name.endswith("_agnostic")}
    assert policies <= set(COLOURS)
