"""Is a figure fit for print? Distances of its colours in three visions and in grey, type, height, colliding words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final
from xml.etree import ElementTree

import altair as alt
import numpy as np

from labkit.core.resources import Floats
from labkit.plots.paper import PAGE_IN, POINTS, SMALLEST_PT, size_of
from labkit.plots.theme import as_svg

VISIONS: Final = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
"""How linear RGB is seen: Machado, Oliveira and Fernandes (2009), severity 1."""
_XYZ: Final = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
_WHITE: Final = np.array([0.95047, 1.0, 1.08883])

LEAST_APART: Final = 20.0
LEAST_GREY: Final = 8.0
MOST_GREYS: Final = 7
"""So many colours can be 8 apart in lightness on white paper."""
CHARACTER: Final = 0.5
"""Width of a character, in heights of the type: about that of DejaVu Sans, so that a collision is a real one."""


@dataclass(frozen=True)
class Measured:
    """One property of a figure: its value, the end that it may have, and whether it keeps it."""

    what: str
    value: float
    wanted: str
    good: bool


def lab(colour: str, vision: str = "normal") -> Floats:
    """Return a colour as it is seen, in CIE L*a*b* (1976, D65).

    `colour`: "#rrggbb"; `vision`: one of `VISIONS`.
    """
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = _XYZ @ np.clip(VISIONS[vision] @ linear, 0, 1) / _WHITE
    x, y, z = np.where(seen > 0.008856, np.cbrt(seen), 7.787 * seen + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_apart(colours: Sequence[str], vision: str) -> float:
    """Return the least distance (CIE 1976) of two colours as they are seen; infinite if there is one."""
    seen = [lab(colour, vision) for colour in colours]
    return min((float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)), default=np.inf)


def least_grey(colours: Sequence[str]) -> float:
    """Return the least difference in lightness L* of two colours; infinite if there is one."""
    light = sorted(float(lab(colour)[0]) for colour in colours)
    return float(min(np.diff(light), default=np.inf))


def print_check(figure: alt.TopLevelMixin) -> list[Measured]:
    """Measure a figure in its size in print (`for_paper(chart)`)."""
    spec, found = figure.to_dict(), []
    svg = as_svg(spec)
    for colours in {tuple(each) for each in _named_colours(spec)}:
        for vision in VISIONS:
            apart = least_apart(colours, vision)
            found.append(_at_least(f"{len(colours)} colours, {vision} vision: distance", apart, LEAST_APART))
        if len(colours) <= MOST_GREYS:
            found.append(_at_least(f"{len(colours)} colours in grey: distance in L*", least_grey(colours), LEAST_GREY))
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)px"', svg)]
    found.append(_at_least("smallest type (pt)", min(sizes, default=np.inf), SMALLEST_PT))
    height = size_of(svg)[1] / POINTS
    found.append(Measured("height (in)", height, f"at most {PAGE_IN:g}", height <= PAGE_IN))
    n_collide = len(collisions(svg))
    return [*found, Measured("pairs of words that collide", n_collide, "0", not n_collide)]


def _at_least(what: str, value: float, least: float) -> Measured:
    return Measured(what, value, f"at least {least:g}", value >= least)


def _named_colours(part: Any) -> Iterator[list[str]]:
    """Yield the colours of every scale of names in a specification."""
    if isinstance(part, list):
        for each in part:
            yield from _named_colours(each)
    elif isinstance(part, dict):
        colour = part.get("color")
        if isinstance(colour, dict) and colour.get("type") == "nominal" and "range" in colour.get("scale", {}):
            yield list(dict.fromkeys(colour["scale"]["range"]))
        for name, each in part.items():
            if name not in ("datasets", "values"):
                yield from _named_colours(each)


Box = tuple[str, float, float, float, float]
"""Words, and their left, right, upper and lower end in pixels."""


def collisions(svg: str) -> list[tuple[str, str]]:
    """Return the pairs of words that are drawn over each other."""
    boxes = list(_boxes(ElementTree.fromstring(svg), np.eye(3)))
    return [
        (a[0], b[0])
        for a, b in combinations(boxes, 2)
        if min(a[2], b[2]) - max(a[1], b[1]) > 1 and min(a[4], b[4]) - max(a[3], b[3]) > 1
    ]


def _boxes(element: ElementTree.Element, outer: Floats) -> Iterator[Box]:
    place = outer @ _matrix(element.get("transform", ""))
    words = "".join(element.itertext()).strip()
    if element.tag.endswith("text") and words and element.get("opacity") != "0":
        size = float(re.sub("[^0-9.]", "", element.get("font-size", "10px")))
        long = CHARACTER * size * len(words)
        left = {"middle": -long / 2, "end": -long}.get(element.get("text-anchor", ""), 0.0)
        corners = place @ np.array([[left, left + long], [-0.7 * size, 0.1 * size], [1.0, 1.0]])
        (x, x2), (y, y2) = np.sort(corners[0]), np.sort(corners[1])
        yield words, float(x), float(x2), float(y), float(y2)
        return
    for child in element:
        yield from _boxes(child, place)


def _matrix(transform: str) -> Floats:
    """Return the matrix of an SVG transform: translations, and turns by an angle."""
    matrix = np.eye(3)
    for name, numbers in re.findall(r"(\w+)\(([^)]*)\)", transform):
        values = [float(number) for number in re.split(r"[,\s]+", numbers.strip())]
        step = np.eye(3)
        if name == "translate":
            step[:2, 2] = [values[0], values[1] if len(values) > 1 else 0.0]
        elif name == "rotate":
            turn = np.radians(values[0])
            step[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
        matrix = matrix @ step
    return matrix
