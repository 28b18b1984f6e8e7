"""The kernel that lets virtual time pass: jobs arrive, get ready and complete."""

from __future__ import annotations

import numpy as np

from labkit.core.book import Records, release
from labkit.core.events import Cause, Events, Kind
from labkit.core.resources import Floats, Ints
from labkit.kernels import inner, kernel
from labkit.simulator.state import (
    N_OTHERS,
    N_RUNNING,
    NEXT_ARRIVAL,
    RESCALING,
    RUNNING,
    STARTING,
    WAITING,
    end,
    go_on,
    lease,
    round_over,
    settle,
    write,
)

_ARRIVED, _STARTED, _RESCALED, _PAUSED = int(Kind.ARRIVED), int(Kind.STARTED), int(Kind.RESCALED), int(Kind.PAUSED)
_DROPPED, _STALLED = int(Kind.DROPPED), int(Cause.STALLED)


@inner
def _next_time(truth: Records, running: Ints, counts: Ints, arrival_s: Floats) -> float:
    at = arrival_s[counts[NEXT_ARRIVAL]] if counts[NEXT_ARRIVAL] < len(arrival_s) else np.inf
    for i in range(counts[N_RUNNING]):
        at = min(at, truth[running[i]].next_s)
    return at


@kernel
def run_until(  # noqa: C901 - the loop over time, a branch for each thing that happens
    until_s: float, stop_at_event: bool, stop_at_change: bool, lease_s: float, truth: Records, running: Ints,
    counts: Ints, arrival_s: Floats, true_steps: Floats, held: Records, tasks: Records, spare: Ints, free: Floats,
    demand: Floats, others: Ints, out: Events,
) -> tuple[int, float, bool, bool]:  # fmt: skip
    """Let jobs arrive, get ready and complete, until a time, an event or a change of the running jobs.

    Return the events written, the time, and whether an event or a change cut it short. At one moment jobs that get
    ready or complete come first, in order of start, then arrivals. With leases the end of the round is the only event
    while jobs hold tasks. A job that loses its partner (`others`, N_OTHERS of them) is always a change.
    """
    n = 0
    counts[N_OTHERS] = 0
    now_s = -np.inf
    leased = lease_s < np.inf
    if leased and stop_at_event and round_over(truth, running, counts):
        return n, now_s, True, False
    while True:
        at = _next_time(truth, running, counts, arrival_s)
        if at > until_s or at == np.inf:
            return n, until_s if until_s < np.inf else now_s, False, False
        now_s = at
        news, moved = False, False
        kept = 0
        for i in range(counts[N_RUNNING]):
            j = running[i]
            ends = truth[j].phase >= RUNNING or (truth[j].phase == RESCALING and truth[j].ready_s > now_s)
            if truth[j].next_s <= now_s and ends:
                kind = end(truth, j, now_s, true_steps)
                n = write(out, n, now_s, kind, j, truth[j].steps, 0.0, -1, -1)
                if kind == _DROPPED:
                    out[n - 1].cause = _STALLED
                moved = True
                if kind != _PAUSED:
                    if held[j].partner >= 0:
                        others[counts[N_OTHERS]] = held[j].partner
                        counts[N_OTHERS] += 1
                    release(held, tasks, spare, free, demand, j)
                    news = True
                    continue
            elif truth[j].next_s <= now_s:
                kind = _STARTED if truth[j].phase == STARTING else _RESCALED
                settle(truth, j, now_s)
                truth[j].base_speed = truth[j].then_speed
                if leased:
                    lease(truth, j, now_s, lease_s, true_steps, held, demand)
                else:
                    go_on(truth, j, now_s)
                n = write(out, n, now_s, kind, j, truth[j].steps, truth[j].speed, -1, -1)
                moved = True
            running[kept] = j
            kept += 1
        counts[N_RUNNING] = kept
        while counts[NEXT_ARRIVAL] < len(arrival_s) and arrival_s[counts[NEXT_ARRIVAL]] <= now_s:
            j = counts[NEXT_ARRIVAL]
            truth[j].phase = WAITING
            n = write(out, n, now_s, _ARRIVED, j, np.nan, np.nan, -1, -1)
            counts[NEXT_ARRIVAL] += 1
            news = True
        if leased and kept:
            news = round_over(truth, running, counts)
        moved = (moved and stop_at_change) or counts[N_OTHERS] > 0
        if (news and stop_at_event) or moved:
            return n, now_s, news and stop_at_event, moved
