"""The jobs of a run that goes on, a row each: what each one does, how far and how fast it is, its loss, and where."""

from __future__ import annotations

import math

import numpy as np

from labkit.core.ledger import DONE, HOLDING, WAITING
from labkit.live.model import LiveModel

HEADINGS = ("job", "model", "does", "steps", "steps/s", "loss", "tasks on")
NUMBERS = ("steps", "steps/s", "loss")


def job_rows(model: LiveModel, *, most: int | None = None) -> list[tuple[str, ...]]:
    """Return id, model, what it does, steps, steps/s, loss and places of each job that has arrived.

    Parameters
    ----------
    model : LiveModel
        Of the run.
    most : int, optional
        Only so many: those that hold tasks first, then those that wait, then those that are over, the newest first.
    """
    belief = model.signals.ledger.belief
    arrived = np.flatnonzero(belief["phase"] > 0)
    if most is not None and len(arrived) > most:
        rank = {HOLDING: 0, WAITING: 1, DONE: 2}
        order = sorted(arrived.tolist(), key=lambda job: (rank[int(belief["phase"][job])], -job))
        arrived = np.sort(order[:most])
    names = model.jobs.model_names()
    return [_row(model, job, str(names[job])) for job in arrived.tolist()]


def _row(model: LiveModel, job: int, name: str) -> tuple[str, ...]:
    at = model.signals.ledger.belief[job]
    return (
        str(model.jobs.id[job]), name, _phase(model, job), f"{at['steps']:.0f} of {model.jobs.total_steps[job]:.0f}",
        _number(at["speed"] if at["phase"] == HOLDING else math.nan, ".1f"),
        _number(model.signals.loss_of.get(job, math.nan), ".4g"), _where(model, job),
    )  # fmt: skip


def _phase(model: LiveModel, job: int) -> str:
    at = model.signals.ledger.belief[job]
    if at["phase"] == DONE:
        return "given up" if job in model.board.dropped else "done"
    if at["phase"] == WAITING:
        return "waits"
    return "starts" if at["speed"] == 0 else "trains"


def _where(model: LiveModel, job: int) -> str:
    _, _, group, count = model.signals.ledger.book.of(np.array([job], np.int32))
    found: dict[str, int] = {}
    for each, n in zip(group.tolist(), count.tolist(), strict=True):
        name = model.cluster.machines[model.cluster.group_machine[each]]
        found[name] = found.get(name, 0) + int(n)
    return ", ".join(f"{name} ({n})" for name, n in found.items())


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else ""
