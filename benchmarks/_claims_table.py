"""From what was measured to the table of docs/dl2.md: each claim of the paper beside what came out here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from labkit.core.resources import Floats

NODES: Final = (48, 16)
PAPER: Final = "paper"
NOT_MEASURED: Final = "not measured"

Told = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Found:
    """What was measured on one cluster with one kind of speeds, by one seed of training."""

    told: Told
    n_nodes: int
    speeds: str = "measured"
    seed: int = 1

    def kept(self, what: str) -> Mapping[str, Any] | None:
        """Return what is known of a training, or of a scheduler that was not trained; None: it was not measured."""
        head = f"{self.n_nodes} nodes, {self.speeds}: {what}"
        return self.told.get(f"{head}, seed {self.seed}", self.told.get(head))

    def jct(self, what: str, how: str) -> Floats | None:
        """Return the mean JCT of each held-out trace, (S,); None: it was not measured."""
        found = self.kept(what)
        return None if found is None else np.array(found[how])

    def policy(self, run: str) -> Floats | None:
        """Return the mean JCT of each trace under a policy that was trained, by actions that are drawn."""
        return self.jct(run, "drawn")

    def rival(self, name: str) -> Floats | None:
        """Return the same of a scheduler that was not."""
        return self.jct(name, "best")


def change(one: Floats | None, other: Floats | None) -> str:
    """Return by how many percent `one` is longer than `other`, with the half width of the 95% interval over traces.

    >>> change(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    '+66.7 ± 0.0%'
    """
    if one is None or other is None:
        return NOT_MEASURED
    differences = one - other
    half = 1.96 * differences.std(ddof=1) / np.sqrt(len(one)) if len(one) > 1 else 0.0
    return f"{100 * differences.mean() / other.mean():+.1f} ± {100 * half / other.mean():.1f}%"


def _against(run: str, rival: str) -> Callable[[Found], str]:
    return lambda found: change(found.policy(run), found.rival(rival))


def _without(run: str, usual: str = PAPER) -> Callable[[Found], str]:
    return lambda found: change(found.policy(run), found.policy(usual))


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and how it is measured here.

    Attributes
    ----------
    name, paper : str
        What is claimed, and its figure.
    ours : callable
        Returns ours.
    run : str
        The training that it is about; "": none.
    """

    name: str
    paper: str
    ours: Callable[[Found], str]
    run: str = PAPER


def _curve(run: str) -> Callable[[Found], str]:
    """Return how good a policy was on its way, as a multiple of DRF's mean JCT on the same traces."""

    def told(found: Found) -> str:
        one, drf = found.kept(run), found.rival("drf")
        if one is None or drf is None:
            return NOT_MEASURED
        curve = one["curve"]
        base = float(drf[:5].mean())
        lessons = [(f"lesson {int(at) + 30}", jct) for at, jct in curve if at < 0] + [
            ("lesson 30" if at == 0 and curve[0][0] < 0 else f"{int(at)} slots", jct) for at, jct in curve if at >= 0
        ]
        return ", ".join(f"{name}: {jct / base:.2f}" for name, jct in lessons)

    return told


def _lost(kind: str, error: float) -> Callable[[Found], str]:
    """Return by how many percent each scheduler's mean JCT grows where speeds or lengths differ."""

    def told(found: Found) -> str:
        parts = []
        for name in ("drf", "optimus", "dl2"):
            parts.append(f"`{name}` {change(found.rival(f'{kind} {error:g}, {name}'), found.rival(name))}")
        return "; ".join(parts)

    return told


CLAIMS: Final = (
    Claim("shorter JCT than DRF", "−44.1%", _against(PAPER, "drf")),
    Claim("shorter JCT than DRF, ours from scratch", "−44.1%", _against("ours", "drf"), "ours"),
    Claim("shorter JCT than DRF, ours without replay", "−44.1%", _against("ours, no replay", "drf"),
          "ours, no replay"),
    Claim("shorter JCT than DRF, ours without replay, three times as long", "−44.1%",
          _against("ours, no replay, long", "drf"), "ours, no replay, long"),
    Claim("shorter JCT than DRF, ours warmed up", "−44.1%", _against("ours, warmed up", "drf"), "ours, warmed up"),
    Claim("shorter JCT than DRF, labkit's networks", "−44.1%",
          lambda f: change(f.rival("dl2"), f.rival("drf")), ""),
    Claim("shorter JCT than Optimus", "−17.5%", _against(PAPER, "optimus")),
    Claim("shorter JCT than Optimus, ours from scratch", "−17.5%", _against("ours", "optimus"), "ours"),
    Claim("shorter JCT than Optimus, labkit's networks", "−17.5%",
          lambda f: change(f.rival("dl2"), f.rival("optimus")), ""),
    Claim("shorter JCT than OfflineRL", "−37.9%", _without(PAPER, "offline"), "offline"),
    Claim("Table 2: without actor-critic", "+21.1%", _without("no critic"), "no critic"),
    Claim("Table 2: without exploration", "+28.8%", _without("no exploration"), "no exploration"),
    Claim("Table 2: without replay", "+39.6%", _without("no replay"), "no replay"),
    Claim("Table 2, ours: without actor-critic", "+21.1%", _without("ours, no critic", "ours"), "ours, no critic"),
    Claim("Table 2, ours: without exploration", "+28.8%", _without("ours, no exploration", "ours"),
          "ours, no exploration"),
    Claim("Table 2, ours: without replay", "+39.6%", _without("ours, no replay", "ours"), "ours, no replay"),
    Claim("reward by job, not by slot", "+29.1%", _without("by job"), "by job"),
    Claim("reward by job, not by slot, ours", "+29.1%", _without("ours, by job", "ours"), "ours, by job"),
    Claim("without a discounted next slot (as released)", "", _without("no discount"), "no discount"),
    Claim("SL loss: mean square in place of cross entropy", "similar, a little worse",
          _without("mean square", "lessons"), "mean square"),
    Claim("SL loss: absolute difference", "similar, a little worse", _without("absolute", "lessons"), "absolute"),
    Claim("Fig. 10: lessons reach DRF in tens of steps, RL then improves; DRF = 1", "tens, hundreds", _curve(PAPER)),
    Claim("Fig. 10: RL alone takes hundreds of steps; DRF = 1", "hundreds", _curve("scratch"), "scratch"),
    Claim("Fig. 13: speeds vary by ±20%, what it costs", "DL2 loses less than Optimus", _lost("speed error", 0.2), ""),
    Claim("Fig. 14: epochs are wrong by ±20%, what it costs", "a little", _lost("epoch error", 0.2), ""),
    Claim("Fig. 14: trained with both", "", _without("varied"), "varied"),
    Claim("Fig. 15: types that come later, at the end, against all from the beginning", "0%",
          _without("types later"), "types later"),
    Claim("Fig. 16: teacher SRTF, against SRTF", "−41.3%", _against("srtf", "srtf(published=True)"), "srtf"),
    Claim("Fig. 16: teacher FIFO, against FIFO", "better", _against("fifo", "fifo(published=True)"), "fifo"),
    Claim("Fig. 17: J = 5 in place of 20", "worse", _without("J = 5"), "J = 5"),
    Claim("Fig. 17: J = 10 in place of 20", "worse", _without("J = 10"), "J = 10"),
    Claim("Fig. 18: 3 clusters at once, as many slots in all, against one", "as good", _without("3 clusters"),
          "3 clusters"),
    Claim("sec. 7: fairness in the reward, what it costs", "possible", _without("fair"), "fair"),
    Claim("sec. 7: all-reduce jobs, against DRF", "possible", _against("rings", "drf, rings"), "rings"),
    Claim("the released code's rules, warmed up, against DRF", "−44.1%", _against("released", "drf"), "released"),
    Claim("the released code's rules from scratch, against DRF", "−44.1%",
          _against("released, scratch", "drf"), "released, scratch"),
)  # fmt: skip


def holds(paper: str, cells: Sequence[str]) -> str:
    """Return whether a figure of the paper was reached, cluster by cluster; "": it has none, or nothing is measured.

    >>> holds("−44.1%", ["-50.0 ± 3.0%", "-12.0 ± 3.0%", "-1.0 ± 3.0%", "+9.0 ± 3.0%", "not measured"])
    'yes; sign alone; no difference; the opposite; –'
    """
    claimed = re.fullmatch(r"([−+])([\d.]+)%", paper)
    found = [re.fullmatch(r"([-+][\d.]+) ± ([\d.]+)%", cell) for cell in cells]
    if claimed is None or not any(found):
        return ""
    sign, size = (-1 if claimed[1] == "−" else 1), float(claimed[2])
    told = []
    for one in found:
        if one is None:
            told.append("–")
            continue
        mine, half = sign * float(one[1]), float(one[2])
        far = "yes" if mine + half >= size else "sign alone"
        told.append("no difference" if abs(mine) <= half else far if mine > 0 else "the opposite")
    return "; ".join(told)


def lines(told: Told) -> Iterator[str]:
    """Yield the lines of the table: measured speeds, the first seed of training."""
    places = [Found(told, n) for n in NODES]
    yield f"| claim | paper | {' | '.join(f'{n} nodes' for n in NODES)} | holds here | slots, CPU s |"
    yield "|---" * (4 + len(places)) + "|"
    for claim in CLAIMS:
        cells = [claim.ours(place) for place in places]
        told_of = [claim.name, claim.paper, *cells, holds(claim.paper, cells), _effort(claim.run, places)]
        yield f"| {' | '.join(told_of)} |"


def on_smooth_speeds(told: Told) -> Iterator[str]:
    """Yield the lines of the same on the smooth model: claims that were measured there."""
    places = [Found(told, n, "fitted") for n in NODES]
    yield f"| claim | paper | {' | '.join(f'{n} nodes' for n in NODES)} | holds here |"
    yield "|---" * (3 + len(places)) + "|"
    for claim in CLAIMS:
        cells = [claim.ours(place) for place in places]
        if not all(NOT_MEASURED in cell for cell in cells):
            yield f"| {' | '.join([claim.name, claim.paper, *cells, holds(claim.paper, cells)])} |"


def by_seed(told: Told) -> Iterator[str]:
    """Yield the lines of the table that has each seed of training by itself: claims that have several."""
    seeds = sorted({int(found[1]) for key in told if (found := re.search(r", measured: .*, seed (\d+)$", key))})
    yield f"| claim | {' | '.join(f'{n} nodes, seed {seed}' for n in NODES for seed in seeds)} |"
    yield "|---" * (1 + len(NODES) * len(seeds)) + "|"
    for claim in CLAIMS:
        if claim.run and not claim.name.startswith("Fig. 10"):
            cells = {(n, seed): claim.ours(Found(told, n, seed=seed)) for n in NODES for seed in seeds}
            if any(cells[n, seed] != NOT_MEASURED for n in NODES for seed in seeds[1:]):
                yield f"| {' | '.join([claim.name, *cells.values()])} |"


REACHED: Final = (
    ("warmed up by DRF, no rounds yet", "lessons"),
    ("the paper's switches", PAPER),
    ("the same from scratch", "scratch"),
    ("the same, nothing discounted", "no discount"),
    ("the same, no replay", "no replay"),
    ("ours", "ours"),
    ("ours, no replay", "ours, no replay"),
    ("ours, no replay, three times as long", "ours, no replay, long"),
    ("rules=released", "released"),
    ("the same from scratch", "released, scratch"),
)
RIVALS: Final = ("drf", "drf(published=True)", "optimus", "constant", "lookahead", "dl2")


def reached(told: Told) -> Iterator[str]:
    """Yield the lines of the table that tells what policies of the paper's form reach: mean JCT in slots."""
    places = [Found(told, n) for n in NODES]
    yield "| mean JCT in slots, drawn / most probable | " + " | ".join(f"{n} nodes" for n in NODES) + " | slots |"
    yield "|---" * (2 + len(NODES)) + "|"
    for name, run in REACHED:
        cells = [" / ".join(_mean(place.jct(run, how)) for how in ("drawn", "best")) for place in places]
        slots = next((f"{kept['slots']:,}" for place in places if (kept := place.kept(run))), "")
        if slots:
            yield f"| {name} | {' | '.join(cells)} | {slots} |"
    for name in RIVALS:
        yield f"| `{name}` | {' | '.join(_mean(place.rival(name)) for place in places)} | |"


def _mean(jct: Floats | None) -> str:
    return "–" if jct is None else f"{jct.mean():.2f}"


def _effort(run: str, places: list[Found]) -> str:
    """Return how many slots a training saw, and how long it took, on the first cluster where it was measured."""
    for place in places:
        if kept := place.kept(run):
            return f"{kept['slots']:,}, {kept['lessons_cpu_s']} + {kept['cpu_s']}"
    return ""


TABLES: Final = (reached, lines, by_seed, on_smooth_speeds)
"""Those of docs/dl2.md."""
