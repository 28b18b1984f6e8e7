"""What the policy does within a slot, decision by decision, for people."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from labkit.core.resources import Ints
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dl2.drafts import draft_of
from labkit.schedulers.dl2.network import Net, Numbers
from labkit.schedulers.dl2.policy import BEST, DecisionRecord, decide, record
from labkit.schedulers.dl2.weights import Weights, load

COLUMNS: Final = ("step", "job", "model", "task", "chance", "taken")
TASKS: Final = ("worker", "PS", "both")
STOP: Final = "stop"
"""In the columns job and task: nothing more is given in this slot."""


def decisions(snapshot: Snapshot, weights: str | Weights = "dl2") -> pd.DataFrame:
    """Return the decision of a policy now, and the probability of each action.

    Parameters
    ----------
    snapshot : Snapshot
        What it sees; nothing is changed.
    weights : str or Weights
        As `DL2` takes them, or what `labkit.schedulers.dl2.load` returns.

    Returns
    -------
    DataFrame
        A row per decision and action that was allowed: step, job (its id), model, task ("worker", "PS", "both"; "stop":
        the slot ends), chance, taken. The worker and the PS that every job gets first are no decisions.

    Examples
    --------
    >>> from labkit.experiment import Experiment, every_slot
    >>> from labkit.schedulers import make
    >>> from labkit.workloads import dl2_jobs
    >>> experiment = Experiment.of(dl2_jobs('short_48n', seed=1), cluster="dl2-16n", cadence=every_slot(1200))
    >>> table = decisions(experiment.session(make("dl2")).snapshot())
    >>> bool((table.groupby("step")["chance"].sum().round(5) == 1).all())
    True
    """
    policy, jobs = load(weights) if isinstance(weights, str) else weights, snapshot.jobs
    net, n = policy.net, len(jobs)
    if not n:
        return pd.DataFrame(columns=list(COLUMNS))
    batch = draft_of(snapshot, policy.models)
    most = int(batch.most[0].sum()) + n + 1
    rec = record(1, n_jobs=n, n_features=len(net.seen), actions_per_slot=most)
    decide(batch, 0, policy.slot_s, net, BEST._replace(keeps=True), rec, np.random.default_rng(0))
    model = np.where(batch.job[0]["model"] < 0, len(net.held) - 1, batch.job[0]["model"])
    worth = worths(net, rec, model)
    ids = [snapshot.table.id[k] for k in jobs.number]
    kinds = [jobs.models[k] for k in jobs.model]
    stop, steps = float(net.stop[0]), range(int(rec.n[2]))
    rows = [row for step in steps for row in _actions(step, rec, worth, stop, ids, kinds)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def worths(net: Net, rec: DecisionRecord, model: Ints) -> Numbers:
    """Return the logits of a worker, a PS and both in each recorded row of the network, (R, 3).

    `model` (S,) is that of each job that was seen. The same as the compiled network, for all rows at once.
    """
    n_jobs, n_rows = int(rec.n[0]), int(rec.n[1])
    job, n_ps, n_workers = rec.job[:n_rows], rec.n_ps[:n_rows], rec.n_workers[:n_rows]
    held = np.column_stack(
        [n_ps / 16, n_workers / 16, np.sqrt(n_ps) / 4, np.sqrt(n_workers) / 4, n_ps == 0, n_workers == 0]
    ).astype(np.float32)
    before = rec.features[:n_jobs] @ net.seen + net.bias
    one = np.maximum(before[job] + np.einsum("rk,rkh->rh", held, net.held[model[job]]), 0)
    found: Numbers = np.maximum(one @ net.middle + net.middle_bias, 0) @ net.worth + net.worth_bias
    return found


def _actions(
    step: int, rec: DecisionRecord, worth: Numbers, stop: float, ids: list[str], kinds: list[str]
) -> list[tuple[int, str, str, str, float, bool]]:
    """Return the rows of a decision."""
    n, last = len(ids), rec.mask.shape[1] - 1
    allowed = np.flatnonzero(rec.mask[step, : 3 * n])
    scores = np.append(worth[rec.row[step, allowed // 3], allowed % 3], stop).astype(np.float64)
    chance = np.exp(scores - scores.max())
    chance /= chance.sum()
    action = int(rec.action[step])
    rows = [
        (step, ids[a // 3], kinds[a // 3], TASKS[a % 3], p, bool(a == action))
        for a, p in zip(allowed.tolist(), chance.tolist(), strict=False)
    ]
    return [*rows, (step, STOP, "", STOP, float(chance[-1]), action == last)]
