"""The look of each scheduler in a figure, and the inks of every figure and page; without Altair, a second to import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

FONT: Final = "Inter, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, MUTED, LINE, FAINT, PAPER = "#1b2330", "#5b6676", "#d9dee6", "#eef1f5", "#ffffff"
HEAT: Final = ("#eef3fb", "#b9d3f4", "#6fa6e8", "#2f6fce", "#163f86")
"""Nothing held ... everything held."""
IN_USE: Final = HEAT[1:]
"""Of the bars of a Gantt chart: from no GPU to the most that a job of the run holds."""
NO_GPU: Final = "#b08a5a"
"""Of the bar of a job that holds tasks and no GPU."""

BLUE, GREY, ORANGE, GREEN, PURPLE, TEAL = "#2844e3", "#838588", "#e88005", "#0b7f3a", "#480279", "#084a47"
OWN: Final = "#001b3e"
"""Of a scheduler that does not ship with labkit: the strongest ink of a figure."""

DASHES: Final[dict[str, list[float]]] = {
    BLUE: [7, 2], GREY: [1, 0], ORANGE: [9, 2, 2, 2], GREEN: [12, 3], PURPLE: [4, 3], TEAL: [2, 2], OWN: [1, 0],
    "#ff1e4b": [1, 1], "#69a5ff": [3, 1], "#c39678": [8, 3, 3, 3], "#695a96": [6, 2, 2, 2, 2, 2], "#1e69d2": [2, 4],
    "#003c0f": [10, 4], "#2db4d2": [5, 1],
}  # fmt: skip
"""The colours of schedulers, each with the dashes of its lines.

Any two are at least 20 apart (CIE 1976) with normal, deuteranopic and protanopic vision (Machado, Oliveira and
Fernandes, 2009), and the first seven at least 8 in lightness L*, for print in grey: labkit.plots.print_check measures.
"""
SHADES: Final = tuple(DASHES)

_FAMILIES: Final = {
    GREY: "fifo easy constant static even kubernetes recorded gavel_fifo gavel_isolated",
    BLUE: "srtf dl2 marl dlrover pollux sia gavel_las attention",
    TEAL: "las tiresias lookahead look_ahead_pods gavel_sjf deepsys hesrpt interference_aware",
    ORANGE: "drf slurm afs shockwave elasticflow gavel_ftf gavel_proportional "
    "gavel_gandiva_fair partitioned autoscale even_pods",
    PURPLE: "tetris tetris_pods sjf qssf muri synergy gavel_makespan gavel_allox gavel_strategy_proof "
    "least_interference lucid",
    GREEN: "optimus pollux_optimus slot_aware gavel_cost gavel_slo gavel_throughput gavel_gandiva gavel_hierarchical "
    "load_balance whole_gang",
}
PREFERRED: Final = {name: shade for shade, names in _FAMILIES.items() for name in names.split()}
"""The colour of each scheduler that ships with labkit, in every figure in which no other has it."""

AGNOSTIC: Final = "_agnostic"
"""Ends the name of a scheduler's version that does not tell device types apart."""


def colour(scheduler: str) -> str:
    """Return the colour that a scheduler prefers; one of the user's own has the strongest ink.

    A label may go on after the name: "drf (seed 2)" and "drf(oracle=True)" have the colour of "drf".

    >>> colour("drf") == colour("drf (seed 2)") == colour("drf(oracle=True)")
    True
    >>> colour("my_scheduler") == OWN
    True
    """
    return PREFERRED.get(scheduler.split("(")[0].strip().removesuffix(AGNOSTIC), OWN)


def colours(labels: Iterable[str]) -> dict[str, str]:
    """Return the colour of each label of a figure: no two alike up to fourteen.

    Each has the colour that it prefers if none before it has; the others get what is left.

    >>> chosen = colours(["drf (seed 1)", "drf (seed 2)"])
    >>> chosen["drf (seed 1)"] == colour("drf"), chosen["drf (seed 2)"] == colour("drf")
    (True, False)
    """
    chosen: dict[str, str] = dict.fromkeys(labels, "")
    free = list(SHADES)
    for label in chosen:
        if (own := colour(label)) in free:
            free.remove(own)
            chosen[label] = own
    for label in chosen:
        if not chosen[label]:
            free = free or list(SHADES)
            chosen[label] = free.pop(0)
    return chosen
