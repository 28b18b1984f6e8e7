"""What disturbs a simulated run at its own times: varying speeds, reports, measurements, troubles, machine failures."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.devices import widened
from labkit.core.errors import InputError, StalledError
from labkit.core.events import NO_EVENTS, Cause, Events, Kind, events, joined
from labkit.core.protocols import PhaseModel, TroubleModel
from labkit.core.resources import Bools, Floats, Ints
from labkit.simulator import kernels
from labkit.simulator.disturbances import Faults, Losses, Variation, checkpoints_s
from labkit.simulator.limits import TimeLimits
from labkit.simulator.measuring import DetailedMeasuring, GrowingMemory, Measuring, check_every, grows
from labkit.simulator.phases import Phases
from labkit.simulator.troubles import ActiveTroubles, Troubles
from labkit.simulator.truth import SimulatedTruth

_VARIATION, _LOSSES, _MEASURING = range(3)


class DueDisturbances:
    """What happens to jobs by itself, and when the next of it is due.

    Raise InputError if the losses are for another number of jobs, a number is out of range, or the speed model cannot
    show troubles or growing memory.

    Parameters
    ----------
    truth : SimulatedTruth
        Jobs, tasks and machines. Its `troubles` and `memory` are set here.
    variation, faults, losses, troubles, checkpoint_s, measure_every_s, limits
        As in `labkit.simulator.Simulator`.
    rng : Generator
        Source of all randomness.
    """

    def __init__(
        self,
        truth: SimulatedTruth,
        *,
        variation: Variation | None,
        faults: Faults | None,
        losses: Losses | None,
        troubles: Troubles | None,
        checkpoint_s: float | None,
        measure_every_s: float | None,
        limits: TimeLimits | None,
        rng: np.random.Generator,
    ) -> None:
        n_jobs = len(truth.jobs)
        if losses is not None and len(losses.curve) != n_jobs:
            raise InputError(f"there are {len(losses.curve)} curves of losses for {n_jobs} jobs; give one for each.")
        check_every(measure_every_s)
        self._truth, self._variation, self._losses = truth, variation, losses
        # a stream for each, so that all schedulers meet the same failures and the same speeds
        self._variation_rng, faults_rng, self._losses_rng = rng.spawn(3)
        self._every_s, self._limits = measure_every_s, limits
        self.checkpoint_s = checkpoints_s(faults, checkpoint_s)
        """How far apart checkpoints are; 0: nothing is lost where a job fails."""
        self._measuring = Measuring(truth.jobs, truth.speed)
        self._detail: DetailedMeasuring | None = None
        self._know_troubles(troubles)
        self.failures = MachineFailures(truth, faults, rng=faults_rng) if faults else None
        """Machines that fail and return."""
        periods_s = (variation and variation.period_s, losses and losses.report_s, measure_every_s)
        self._due_s = np.array([np.inf if period_s is None else period_s for period_s in periods_s], np.float64)
        self._phases = Phases(truth, truth.speed) if isinstance(truth.speed, PhaseModel) else None
        parts = (variation, faults, losses, measure_every_s, truth.troubles, truth.memory, limits, self._phases)
        self.any = any(part is not None for part in parts)
        """Whether anything will ever be due."""
        if variation:
            truth.records["factor"] = variation.factors(n_jobs, rng=self._variation_rng)

    def _know_troubles(self, troubles: Troubles | None) -> None:
        """Set the troubles and the memory of jobs, which the speed model must be able to show."""
        if not 0 <= self.checkpoint_s < np.inf:
            raise InputError(f"checkpoint_s is {self.checkpoint_s}; expected seconds >= 0, 0: nothing is lost.")
        truth, model = self._truth, self._truth.speed
        some, growing = troubles is not None, grows(truth.jobs)
        if not (some or growing.any()):
            return
        if not (getattr(model, "troubles", False) and isinstance(model, TroubleModel) and model.local):
            what = "slow and hot tasks" if some else f"memory that grows, as of job {truth.jobs.id[growing.argmax()]}"
            raise InputError(
                f"{type(model).__name__} knows nothing of {what}; take speed 'bottleneck', or leave "
                f"{'the troubles' if some else 'ps_memory_growth_gb'} out."
            )
        truth.memory = GrowingMemory(truth.jobs, model) if growing.any() else None
        truth.troubles = None if troubles is None else ActiveTroubles(troubles, truth.jobs)
        self._detail = DetailedMeasuring(truth.jobs, model, truth.memory)

    def next_s(self) -> float:
        """Return when the next of it is due; inf: never."""
        if not self.any:
            return np.inf
        truth, due_s = self._truth, float(self._due_s.min())
        if truth.memory is not None:
            due_s = min(due_s, truth.memory.next(truth.records, truth.holding())[0])
        if truth.troubles is not None:
            due_s = min(due_s, truth.troubles.next_s)
        if self._phases is not None:
            due_s = min(due_s, self._phases.next_s())
        if self._limits is not None:
            due_s = min(due_s, self._limits.next(truth)[0])
        return due_s if self.failures is None else min(due_s, float(self.failures.next_s.min()))

    def happen(self) -> tuple[bool, Events]:
        """Let what is due now happen; return whether a scheduler should know, and the events."""
        truth = self._truth
        batches = [] if self._phases is None else [self._phases.happen()]
        news = False
        if self._losses and self._is_due(_LOSSES, self._losses.report_s):
            batches.append(self._report_losses(self._losses))
        if self._variation and self._is_due(_VARIATION, self._variation.period_s):
            batches.append(self._vary(self._variation))
        if truth.troubles is not None and truth.troubles.next_s <= truth.now_s:
            batches.append(self._begin_troubles(truth.troubles))
        if self._every_s is not None and self._is_due(_MEASURING, self._every_s):
            batches.append(self._measure())
        while truth.memory is not None and (due := self._next_out_of_memory(truth.memory)) >= 0:
            batches.append(self._run_out(truth.memory, due))
            news = True
        if self._limits is not None and (over := self._limits.next(truth))[0] <= truth.now_s:
            batches.append(self._end(over[1]))
            news = True
        while self.failures and self.failures.next_s.min() <= truth.now_s:
            batches.append(self.failures.happen())
            news = True
        return news, joined(batches)

    def _is_due(self, which: int, period_s: float) -> bool:
        """Return whether one of the periodic things is due; it is due again a period later."""
        due = bool(self._due_s[which] <= self._truth.now_s)
        if due:
            self._due_s[which] += period_s
        return due

    def _vary(self, variation: Variation) -> Events:
        """Draw other factors of all speeds, with which the running jobs go on."""
        truth = self._truth
        truth.records["factor"] = variation.factors(len(truth.jobs), rng=self._variation_rng)
        jobs = truth.in_phase(kernels.RUNNING)
        return truth.retime(jobs, truth.records["base_speed"][jobs])

    def _measure(self) -> Events:
        truth = self._truth
        jobs = truth.in_phase(kernels.RUNNING)
        jobs = jobs[truth.records["speed"][jobs] > 0]
        at, running = truth.records[jobs], truth.tasks_of(jobs)
        if self._detail is not None:
            return self._detail.rows(running, factor=at["factor"], steps=truth.steps_now(jobs), now_s=truth.now_s)
        return self._measuring.rows(running, speeds=at["speed"], factor=at["factor"], now_s=truth.now_s)

    def _begin_troubles(self, troubles: ActiveTroubles) -> Events:
        """Let troubles that are due begin; jobs that hold tasks go on at the speed that they have with them."""
        truth = self._truth
        jobs = troubles.begin(truth.now_s)
        jobs = jobs[truth.book.allocations["first"][jobs] >= 0]
        if not len(jobs):
            return NO_EVENTS
        if truth.memory is not None:
            truth.memory.note(truth.tasks_of(jobs))
        return truth.retime(jobs, truth.speeds(jobs))

    def _next_out_of_memory(self, memory: GrowingMemory) -> int:
        """Return a job whose server runs out of memory now; -1: there is none."""
        due_s, job = memory.next(self._truth.records, self._truth.holding())
        return job if due_s <= self._truth.now_s else -1

    def _run_out(self, memory: GrowingMemory, job: int) -> Events:
        """Let a job lose its tasks, as a server has no more memory; for good where more of the same would not help."""
        truth = self._truth
        failed = memory.failure_event(job, machines=truth.cluster.group_machine.astype(np.int32), now_s=truth.now_s)
        truth.counts[kernels.N_OTHERS] = 0
        given_up = memory.ran_out(job)
        lost = truth.lose(np.array([job], np.int32), 0.0 if given_up else self.checkpoint_s)
        lost["machine"], lost["cause"] = failed["machine"], Cause.OUT_OF_MEMORY
        if given_up:
            lost["kind"] = Kind.DROPPED
            truth.records["phase"][job] = kernels.DONE
        return joined([failed, lost, truth.retime_unpaired()])

    def _end(self, jobs: Ints) -> Events:
        """End jobs at their time limits, whatever they have done."""
        truth = self._truth
        truth.counts[kernels.N_OTHERS] = 0
        ended = truth.lose(jobs, 0.0)
        ended["kind"], ended["cause"] = Kind.COMPLETED, Cause.TIME_LIMIT
        truth.records["phase"][jobs] = kernels.DONE
        return joined([ended, truth.retime_colocated()])

    def _report_losses(self, losses: Losses) -> Events:
        truth = self._truth
        jobs = truth.in_phase(kernels.RUNNING)
        batch = events(len(jobs))
        batch["time_s"], batch["kind"], batch["job"] = truth.now_s, Kind.LOSS, jobs
        epochs = truth.steps_now(jobs) / truth.jobs.steps_per_epoch[jobs]
        batch["value"] = losses.at(jobs, epochs, rng=self._losses_rng)
        return batch


MOST_FAILURES: Final = 100_000, 1_000
"""Failures of machines on end, in all and for each machine, during which some job completes, or none ever will."""


class MachineFailures:
    """When each machine fails or returns next, and what happens then.

    Parameters
    ----------
    truth : SimulatedTruth
        Jobs, tasks and machines.
    faults : Faults
        How often machines fail, and for how long.
    rng : Generator
        Of the times.
    """

    def __init__(self, truth: SimulatedTruth, faults: Faults, *, rng: np.random.Generator) -> None:
        self._truth, self._faults, self._rng = truth, faults, rng
        self.next_s: Floats = rng.exponential(faults.mtbf_s, truth.cluster.n_machines)
        """(M,) seconds at which each machine fails or returns next."""
        self._n, self._n_done_before = 0, 0

    def happen(self) -> Events:
        """Let the machine that is due next fail or return; return the events.

        Raise StalledError if so many machines have failed without a job that completed that the run would not end.
        """
        truth, machine = self._truth, int(self.next_s.argmin())
        groups = truth.cluster.group_machine == machine
        note = events(1)
        note["time_s"], note["machine"] = truth.now_s, machine
        if not truth.machine_up[machine]:
            truth.machine_up[machine] = True
            self.next_s[machine] = truth.now_s + self._rng.exponential(self._faults.mtbf_s)
            truth.book.left[groups] += widened(truth.cluster.capacity, truth.book.n_devices)[groups]
            note["kind"] = Kind.JOINED
            return note
        self._count()
        lost = self._lose_jobs(groups)
        lost["machine"], lost["cause"] = machine, Cause.HOST_LOST
        truth.machine_up[machine] = False
        self.next_s[machine] = truth.now_s + self._rng.exponential(self._faults.mttr_s)
        truth.book.left[groups] -= widened(truth.cluster.capacity, truth.book.n_devices)[groups]
        note["kind"], note["cause"] = Kind.LEFT, Cause.HOST_LOST
        return joined([lost, note, truth.retime_colocated()]) if len(lost) else note

    def _lose_jobs(self, groups: Bools) -> Events:
        """Take all tasks from the jobs that have one in these groups; they fall back to their checkpoints."""
        truth = self._truth
        truth.counts[kernels.N_OTHERS] = 0
        hit = kernels.on_groups(truth.running, truth.counts, truth.book.allocations, truth.book.tasks, groups)
        return truth.lose(truth.holding()[hit].copy(), self._faults.checkpoint_s)

    def _count(self) -> None:
        """Raise if so many machines have failed, and no job completed meanwhile, that the run would not end."""
        self._n += 1
        most, each = MOST_FAILURES
        if self._n % max(most, each * self._truth.cluster.n_machines):
            return
        n_done = self._truth.n_done
        if n_done == self._n_done_before:
            raise StalledError(
                f"machines have failed {self._n:,} times by {self._truth.now_s:g} s, and {n_done} of "
                f"{len(self._truth.jobs)} jobs have completed, none of them lately; give "
                f"Faults(mtbf_s={self._faults.mtbf_s:g}) more seconds between failures, or less to lose with each."
            )
        self._n_done_before = n_done
