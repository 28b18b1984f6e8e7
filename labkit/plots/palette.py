"""One colour per scheduler, and the inks of every figure and page; without Altair, which takes a second to import."""

from __future__ import annotations

import colorsys
from collections import Counter
from collections.abc import Iterable
from typing import Final
from zlib import crc32

FONT: Final = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, MUTED, LINE, FAINT, PAPER = "#1b2330", "#5b6676", "#d9dee6", "#eef1f5", "#ffffff"
HEAT: Final = ("#eef3fb", "#b9d3f4", "#6fa6e8", "#2f6fce", "#163f86")
HELD: Final = HEAT[1:]
"""Of the bars of a Gantt chart: from no GPU to the most that a job of the run holds."""
NO_GPU: Final = "#b08a5a"
"""Of the bar of a job that holds tasks and no GPU."""
"""Nothing held ... everything held."""

COLOURS: Final = {
    "fifo": "#7b8798",
    "sjf": "#4fb3d9",
    "srtf": "#2563d8",
    "las": "#0f9d9a",
    "drf": "#e59a2b",
    "tetris": "#9254d6",
    "optimus": "#2b9f5c",
    "dl2": "#d4345f",
    "marl": "#c4571b",
    "dlrover": "#8a6d1d",
    "gavel_las": "#0b6e83",
    "gavel_ftf": "#6741c9",
    "gavel_makespan": "#e052e0",
    "gavel_cost": "#b6a720",
    "gavel_fifo": "#a63083",
    "gavel_sjf": "#815c37",
    "gavel_slo": "#1c9c1c",
    "gavel_throughput": "#e07c52",
    "gavel_allox": "#3879dc",
    "gavel_gandiva": "#e0528b",
    "gavel_hierarchical": "#37be7a",
    "gavel_strategy_proof": "#ae25d0",
    "gavel_proportional": "#8e8429",
    "gavel_isolated": "#a970c2",
}
"""The colour of each scheduler that ships with labkit, the same in every figure."""

SECOND_GREY: Final = "#c9699f"
"""The colour of the second version of `fifo` in one figure."""

AGNOSTIC: Final = "_agnostic"
"""Ends the name of a scheduler's version that does not tell device types apart."""


def colour(scheduler: str) -> str:
    """Return the colour of a scheduler; one that labkit does not know gets its own from its name.

    A label may go on after the name: "drf (seed 2)" and "drf(oracle=True)" have the colour of "drf". The agnostic
    version of a scheduler has the opposite hue.

    >>> colour("drf") == colour("drf (seed 2)") == colour("drf(oracle=True)")
    True
    >>> colour("my_scheduler") == colour("my_scheduler")
    True
    """
    name = scheduler.split("(")[0].strip()
    if name in COLOURS:
        return COLOURS[name]
    return _opposite(colour(name.removesuffix(AGNOSTIC))) if name.endswith(AGNOSTIC) else _own_colour(name)


def _opposite(own: str) -> str:
    """Return the colour of the opposite hue, not darker than can be told from black."""
    red, green, blue = (int(own[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    return _hex(*colorsys.hls_to_rgb((hue + 0.5) % 1, max(light, 0.45), saturation))


def _own_colour(name: str) -> str:
    hue = crc32(name.encode()) % 360 / 360
    return _hex(*colorsys.hls_to_rgb(hue, 0.45, 0.55))


def _hex(red: float, green: float, blue: float) -> str:
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def colours(labels: Iterable[str]) -> dict[str, str]:
    """Return the colour of each label of a figure; the second of one scheduler gets a lighter shade, and so on.

    Shades of grey are hard to tell apart: the second of a grey one is pink.

    >>> told = colours(["drf (seed 1)", "drf (seed 2)"])
    >>> told["drf (seed 1)"] == colour("drf"), told["drf (seed 2)"] == colour("drf")
    (True, False)
    """
    shades: dict[str, str] = {}
    times_seen: Counter[str] = Counter()
    for label in dict.fromkeys(labels):
        own = colour(label)
        n_lighter = times_seen[own]
        if n_lighter and own == COLOURS["fifo"]:
            own, n_lighter = SECOND_GREY, n_lighter - 1
        shades[label] = _lighter(own, 1 - 0.6**n_lighter)
        times_seen[colour(label)] += 1
    return shades


def _lighter(own: str, by: float) -> str:
    channels = (int(own[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel + by * (255 - channel)):02x}" for channel in channels)
