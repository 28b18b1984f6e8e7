"""From what was measured to the tables of docs/marl.md: each claim of the text beside what came out here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from labkit.core.resources import Floats

Told = Mapping[str, Mapping[str, Any]]
PAPERS: Final = ("Tetris", "Tetris, by machine", "LB", "LIF", "Kubernetes", "DeepSys", "Attention")
"""The rules that the text compares with, Tetris in two readings; its sixth (attention) was not measured."""
VARIANTS: Final = ("quadratic", "linear", "without_pcie", "without_cpu")
"""What Table III compares the two-stage model with."""
FORM: Final = "device, speed"
"""The training that stands for the published form; `SERVERS` and `ONE` for its server level, and for one agent."""
SERVERS: Final = "server, speed"
ONE: Final = "one agent, speed"
SIMPLE: Final = ("whole gang", "even per pod", "even", "interference-aware")
"""Rules that it does not have."""
BOUND: Final = "bound: each job alone"
OURS: Final = "marl"
NOT_MEASURED: Final = "not measured"
SETTINGS: Final = {
    "at least 24.3% shorter JCT, by arrivals": ("24.3", ("google", "uniform", "poisson")),
    "at least 22%, other servers": ("22", ("8-GPU servers (i)", "uneven sockets (ii)", "mixed servers (iii)")),
    "at least 21%, VL2 and BCube": ("21", ("VL2 (1/10/10 Gbps)", "BCube")),
    "at least 18.9%, 48-GPU testbed": ("18.9", ("testbed",)),
}
"""Claim -> its figure in per cent, and the worlds that test it."""
WINDOW: Final = 20
"""Epochs over which a training curve is averaged."""


@dataclass(frozen=True)
class Best:
    """The best of some rules in a world: its name, and its JCT of each trace."""

    name: str
    jct: Floats


def best(told: Told, world: str, rules: Sequence[str]) -> Best | None:
    """Return the rule with the shortest mean JCT; None: none was measured."""
    found = [Best(rule, np.array(told[f"{world}: {rule}"]["jct"])) for rule in rules if f"{world}: {rule}" in told]
    return min(found, key=lambda one: float(one.jct.mean()), default=None)


def policy(told: Told, world: str, name: str = FORM) -> Floats | None:
    """Return the mean JCT of each trace under trained networks, over seeds of training; most probable actions."""
    head = f"trained: {name}, seed " if world == "google" else f"{world}: {name}, seed "
    found = [one["best"] for key, one in sorted(told.items()) if key.startswith(head)]
    return np.mean(found, axis=0) if found else None


def gain(mine: Floats, other: Best) -> tuple[float, float]:
    """Return by which part mean JCT is shorter than a rule's, and 1.96 standard errors of that over traces."""
    n = min(len(mine), len(other.jct))
    each = (other.jct[:n] - mine[:n]) / other.jct[:n].mean()
    return float(each.mean()), 1.96 * float(each.std(ddof=1)) / math.sqrt(n) if n > 1 else float("nan")


def shorter(mine: Floats | None, other: Best | None) -> str:
    """Return by how much mean JCT is shorter than a rule's, and the rule."""
    if mine is None or other is None:
        return NOT_MEASURED
    mean, error = gain(mine, other)
    return f"{100 * mean:+.1f} ± {100 * error:.1f}% ({other.name})"


def trained(told: Told) -> list[str]:
    """Return the table of mean JCTs on Google-like arrivals."""
    lines = [
        "| scheduler | mean JCT, intervals | before training | drawn actions | epochs, CPU s |",
        "|---|---|---|---|---|",
    ]
    for rule in (*PAPERS, *SIMPLE, OURS, BOUND):
        if (key := f"google: {rule}") in told:
            name = "`marl`, as shipped" if rule == OURS else rule
            lines.append(f"| {name} | {np.mean(told[key]['jct']):.2f} | | | |")
    for key, one in sorted(told.items()):
        if key.startswith("trained: "):
            before = np.mean(one["untrained"]["best"])
            lines.append(
                f"| published form: {key.removeprefix('trained: ')} | {np.mean(one['best']):.2f} | {before:.2f} | "
                f"{np.mean(one['drawn']):.2f} | {one['epochs']}, {one['cpu_s']} |"
            )
    return lines


def claims(told: Told) -> list[str]:
    """Return the table of the text's claims."""
    lines = [
        "| claim of the text | where | published form: its baselines' best | the best simple rule | "
        "`marl`: its baselines' best | the best simple rule | holds: form; `marl` |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim, (figure, worlds) in SETTINGS.items():
        for world in worlds:
            both = policy(told, world), ours(told, world)
            rivals = best(told, world, PAPERS), best(told, world, SIMPLE)
            cells = [shorter(mine, rival) for mine in both for rival in rivals]
            holds = "; ".join(_holds(mine, rivals[0], float(figure)) for mine in both)
            lines.append(f"| {claim} | {world} | {' | '.join(cells)} | {holds}{_room(told, world, float(figure))} |")
    lines += [
        _cores(told),
        _against(told, "device level beats server level", FORM, SERVERS),
        _epochs(told),
        _against(told, "one agent learns worse than many", FORM, ONE),
        _one_agent(told),
        *_table3(told),
    ]
    return lines


def ours(told: Told, world: str) -> Floats | None:
    """Return the mean JCT of each trace under the shipped policy."""
    key = f"{world}: {OURS}"
    return np.array(told[key]["jct"]) if key in told else None


def _holds(mine: Floats | None, other: Best | None, figure: float) -> str:
    if mine is None or other is None:
        return NOT_MEASURED
    mean, error = gain(mine, other)
    if mean < figure / 100:
        return "no"
    return "yes" if mean > error else "on average"


def _room(told: Told, world: str, figure: float) -> str:
    """Return how much shorter than its baselines' best anybody could be, where that is less than the text claims."""
    rival, bound = best(told, world, PAPERS), best(told, world, (BOUND,))
    if rival is None or bound is None:
        return ""
    most = 100 * (1 - float(bound.jct.mean() / rival.jct.mean()))
    return f" (nothing can be more than {most:.0f}% shorter)" if most < figure else ""


def _cores(told: Told) -> str:
    """Return the row of how busy the cores of the testbed's servers are."""
    cells, holds = [], []
    for rule in (f"{FORM}, seed 1", OURS):
        one = told.get(f"cores: {rule}")
        if one is None:
            cells, holds = [*cells, NOT_MEASURED], [*holds, NOT_MEASURED]
            continue
        low, middle, high = (f"{100 * x:.0f}" for x in one["samples"])
        servers = f"servers' means {100 * min(one['mean']):.0f} to {100 * max(one['mean']):.0f}%"
        cells.append(f"{low} to {high}% (median {middle}) in nine of ten samples; {servers}")
        holds.append("yes" if one["samples"][0] >= 0.55 and one["samples"][2] <= 0.75 else "no")
    return f"| CPU use of 55-75% in every server | testbed | {cells[0]} | | {cells[1]} | | {'; '.join(holds)} |"


def _against(told: Told, claim: str, one: str, other: str) -> str:
    """Return the row of which of two trainings is better after as many epochs, by JCTs of its last 20 there."""
    curves = [told.get(f"trained: {name}, seed 1", {}).get("curve", []) for name in (one, other)]
    n = min(map(len, curves))
    if n < WINDOW:
        return f"| {claim} | google | {NOT_MEASURED} | | | | {NOT_MEASURED} |"
    last = np.array([curve[n - WINDOW : n] for curve in curves])
    (mine, theirs), error = last.mean(axis=1), 1.96 * math.sqrt(float(last.var(axis=1, ddof=1).sum()) / WINDOW)
    when = f"epochs {n - WINDOW + 1} to {n} of training"
    found = f"{_short(one)} {mine:.1f}, {_short(other)} {theirs:.1f} intervals (± {error:.1f}) in {when}"
    shows = "yes" if mine < theirs else "no"
    holds = shows if abs(mine - theirs) > error else "no difference that shows"
    return f"| {claim} | google | {found} | | | | {holds} |"


def _short(training: str) -> str:
    """Return who learned: "one agent, speed" -> "one agent"."""
    return training.partition(",")[0]


def epochs_to(curve: Sequence[float], level: float) -> int | None:
    """Return after how many epochs the mean of the last 20 is down to a level; None: never.

    >>> epochs_to([9.0] * 20 + [1.0] * 20, 5.0)
    30
    """
    means = np.convolve(curve, np.full(WINDOW, 1 / WINDOW), "valid") if len(curve) >= WINDOW else np.zeros(0)
    below = np.flatnonzero(means <= level + 1e-9)
    return int(below[0]) + WINDOW if len(below) else None


def _epochs(told: Told) -> str:
    """Return the row of how soon each training of many agents, and one agent, reach a level."""
    claim = "200 epochs, more than 400 for one agent"
    many = [one["curve"] for key, one in sorted(told.items()) if key.startswith(f"trained: {FORM}, seed ")]
    single, rival = told.get(f"trained: {ONE}, seed 1", {}).get("curve"), best(told, "google", PAPERS)
    if not many or single is None or rival is None:
        return f"| {claim} | google | {NOT_MEASURED} | | | | {NOT_MEASURED} |"
    level = float(rival.jct.mean())
    said = [_reached(curve, level) for curve in (*many, single)]
    found = f"many: {' and '.join(said[:-1])}, one: {said[-1]}, down to {rival.name}'s {level:.1f} intervals"
    return f"| {claim} | google | {found} | | | | {_sooner([epochs_to(c, level) for c in many], single, level)} |"


def _reached(curve: Sequence[float], level: float) -> str:
    n = epochs_to(curve, level)
    return f"never in {len(curve)}" if n is None else str(n)


def _sooner(many: Sequence[int | None], single: Sequence[float], level: float) -> str:
    """Return whether one agent takes twice as long as each training of many, or more than the text's 400 epochs."""
    if None in many:
        return "not shown"
    last, one = max(n for n in many if n is not None), epochs_to(single, level)
    if one is not None:
        return "yes" if one >= 2 * last else "no"
    return "yes" if len(single) >= 2 * last or len(single) >= 400 > last else "not shown"


def _one_agent(told: Told) -> str:
    """Return the row of where one agent ends, beside Tetris."""
    claim, mine = "one agent ends below Tetris", policy(told, "google", ONE)
    tetris = best(told, "google", PAPERS[:2])
    if mine is None or tetris is None:
        return f"| {claim} | google | {NOT_MEASURED} | | | | {NOT_MEASURED} |"
    found, level = f"{mine.mean():.1f} intervals, {tetris.name} {tetris.jct.mean():.1f}", float(tetris.jct.mean())
    return f"| {claim} | google | {found} | | | | {'yes' if mine.mean() > level else 'no'} |"


def _table3(told: Told) -> list[str]:
    """Return the rows of Table III, held-out errors of interference models, on data that we made."""
    said = {
        "two_stage": "13.1", "quadratic": "22.9", "linear": "24.6", "without_pcie": "27.5", "without_cpu": "36.3",
    }  # fmt: skip
    lines = []
    for model, figure in said.items():
        found = [f"{preset} {100 * told[key][model]:.1f}%" for preset in ("mild", "convex")
                 if (key := f"table III: {preset}") in told]  # fmt: skip
        said_here, holds = "; ".join(found) or NOT_MEASURED, _ranked(told, model)
        lines.append(f"| Table III: error of {model}, {figure}% | synthetic server | {said_here} | | | | {holds} |")
    return lines


def _ranked(told: Told, model: str) -> str:
    """Return whether the two-stage model is the best of all, or better than another one, on each kind of server."""
    found = {preset: told[key] for preset in ("mild", "convex") if (key := f"table III: {preset}") in told}
    if not found:
        return NOT_MEASURED
    rivals = {preset: {m: e for m, e in errors.items() if m in VARIANTS} for preset, errors in found.items()}
    better = {
        preset: all(found[preset]["two_stage"] <= e for m, e in those.items() if model in ("two_stage", m))
        for preset, those in rivals.items()
    }
    return ", ".join(f"{preset} {'yes' if holds else 'no'}" for preset, holds in better.items())
