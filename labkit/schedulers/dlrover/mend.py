"""Carries out what `adjust` and `memory` say about jobs that run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nan
from typing import Final

import numpy as np

from labkit.core.events import Role
from labkit.core.resources import MEMORY_GB
from labkit.schedulers.dlrover.adjust import Action, Do, Report, adjust
from labkit.schedulers.dlrover.memory import foreseen_gb, noted
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.share import JobBelief
from labkit.schedulers.dlrover.sight import Sight
from labkit.schedulers.dlrover.stages import Stage, balanced, may_change
from labkit.schedulers.dlrover.turn import Turn

_REPLACED: Final = {Do.REPLACE_PS: Role.PS, Do.REPLACE_WORKER: Role.WORKER}


@dataclass(frozen=True, eq=False, slots=True)
class Mender:
    """Looks after jobs that run, in one decision."""

    turn: Turn
    """The decision."""
    sight: Sight
    """What is seen of the jobs."""
    total_cores: float
    most_cores: float
    unit: float
    """`total_cores`, `most_cores` and `unit`: the quota of a job, the most cores of a task, and the cores that count as
    one."""

    def free_to_change(self, job: int) -> bool:
        """Return whether a job was left alone for long enough."""
        return self.turn.now_s >= self.turn.states[job].changed_s + self.turn.rules.gap_s

    # --- troubles

    def watch(self, i: int, job: int, belief: JobBelief | None) -> None:
        """Count the signs of trouble of a job after a measurement, and do what is to be done about them."""
        state, rules = self.turn.states[job], self.turn.rules
        report = self._report(i, job, belief)

        def predicted(n_workers: int) -> float:
            return belief.speed(state.plan, more=n_workers - state.plan.n_workers) if belief is not None else 0.0

        free = self.free_to_change(job)
        watch, action = adjust(state.watch, report, rules, predicted=predicted, free=free)
        self.turn.states[job] = state._replace(watch=watch)
        if action is not None:
            self._do(job, state.plan, action, belief)

    def _report(self, i: int, job: int, belief: JobBelief | None) -> Report:
        state, turn = self.turn.states[job], self.turn
        left = float(turn.snapshot.table.total_steps[job] - self.sight.steps[i])
        speed = float(self.sight.speed[i])
        grows = state.stage == Stage.FINAL and belief is not None and may_change(state, turn.rules, now_s=turn.now_s)
        spare = turn.spare_cores
        if not turn.rules.beyond:
            spare = min(spare, max(self.total_cores - state.plan.cores, 0.0))
        workers, worker = self.sight.tasks(i, Role.WORKER, state.plan)
        servers, server = self.sight.tasks(i, Role.PS, state.plan)
        return Report(
            plan=state.plan, left_s=max(left, 0.0) / max(speed, 1e-12), pause_s=turn.pause_s, wait=self.sight.wait(i),
            workers=workers, servers=servers, worker=worker, server=server,
            most_cores=self.most_cores, spare_cores=spare, unit=self.unit,
            most_workers=int(turn.snapshot.table.max_workers[job]) if grows else state.plan.n_workers,
        )  # fmt: skip

    def _do(self, job: int, plan: Plan, action: Action, belief: JobBelief | None) -> None:
        """Carry out an action, or tell why nothing is done."""
        turn, done = self.turn, plan
        if action.do == Do.NOTHING:
            return turn.tell(job, action.why)
        if action.do in _REPLACED:
            for task in action.tasks:
                turn.room.trial.replace(job, _REPLACED[action.do], task)
        elif action.do == Do.BALANCE:
            turn.room.trial.balance(job)
            turn.states[job] = balanced(turn.states[job])
        elif action.do == Do.MORE_CORES:
            done = self._larger(job, plan, action)
        else:
            done = self._more(job, plan, action)
        if done is plan and action.do == Do.MORE_WORKERS:
            return None  # cores are free, but not in one piece
        if done is plan and action.do == Do.MORE_CORES:
            return turn.tell(job, f"{action.why}; no machine has them free")
        return turn.change(job, done, action.why, predicted=nan if belief is None else belief.speed(done))

    def _larger(self, job: int, plan: Plan, action: Action) -> Plan:
        """Give servers more cores, where they are if they can have them there; return the plan that came of it."""
        extra = {**dict(plan.extra), **dict(zip(action.tasks, action.amounts, strict=True))}
        wanted = replace(plan, extra=tuple(sorted(extra.items())))
        if self.turn.room.resize(job, Role.PS, dict(extra)):
            return wanted
        return self.turn.room.settle(job, wanted, whole=True) or plan

    def _more(self, job: int, plan: Plan, action: Action) -> Plan:
        """Give a job more workers, and return the plan that came of it."""
        if not self.turn.room.holds_one_more(job, plan.worker_cores):
            return plan
        wanted = replace(plan, n_workers=plan.n_workers + action.more)
        got = self.turn.room.settle(job, wanted)
        if got is None or got.n_workers <= plan.n_workers:
            if got is not None:
                self.turn.room.settle(job, plan)
            return plan
        over = got.cores - self.total_cores
        beyond = int(np.clip(np.ceil(over / plan.worker_cores - 1e-9), 0, got.n_workers - plan.n_workers + plan.beyond))
        return replace(got, beyond=beyond)

    # --- memory

    def foresee(self, i: int, job: int) -> None:
        """Note the memory of a job's servers, and give them more in time where it will not last to the end.

        Servers of which no memory is declared have no limit.
        """
        turn, state = self.turn, self.turn.states[job]
        steps, gb, part = self.sight.points[i]
        limit = float(self.sight.ps_gb[i])
        points = noted(state.points, steps, gb, part) if gb > 0 and limit > 0 else state.points
        if points is state.points:
            return
        turn.states[job] = state._replace(points=points)
        total_gb = foreseen_gb(points, float(turn.snapshot.table.total_steps[job]))
        fullest = total_gb * points[-1].part
        if not fullest > limit * (1 + 1e-6) or not self.free_to_change(job):
            return
        plan, wanted = state.plan, turn.rules.memory_margin * fullest
        told = f"the fullest PS holds {points[-1].gb:.3g} of {limit:.3g} GB and will hold {fullest:.3g} at the end"
        done = self._with_memory(job, plan, wanted)
        if done is not None:
            turn.change(job, done, f"{told}: {done.n_ps} PSs with {turn.ps_gb(job, done):.3g} GB each")

    def _with_memory(self, job: int, plan: Plan, gb: float) -> Plan | None:
        """Give a job's servers more memory, or twice as many servers where no machine has so much; None: no room."""
        turn = self.turn
        largest = float(turn.snapshot.offered[:, MEMORY_GB].max())
        within = replace(plan, ps_memory_gb=round(gb, 3))
        if gb <= largest and turn.room.remember(job, within.ps_memory_gb):
            return within
        if gb <= largest and (got := turn.room.settle(job, within, whole=True)) is not None:
            return got
        n_ps = min(2 * plan.n_ps, int(turn.snapshot.table.max_ps[job]))
        if n_ps == plan.n_ps:
            return None
        more = replace(plan, n_ps=n_ps, extra=(), ps_memory_gb=round(gb * plan.n_ps / n_ps, 3))
        return turn.room.settle(job, more)
