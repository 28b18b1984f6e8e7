"""Division of the data among workers: shards of a batch (synchronous), leases of samples (asynchronous)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from labkit.elastic.controller.controller_state import CommandBuffer, ControllerState, Member, Note
from labkit.elastic.controller.scaling_requests import JobOutcome
from labkit.elastic.protocol.messages.orders import AssignShards, ConfirmLeases, GrantLease, RevokeLease, SampleLease
from labkit.elastic.protocol.messages.reports import StepDone, UpdateDone
from labkit.elastic.shards import Fate, Journal, PoisonShardError, Record, SavedShards, ShardLease, ShardService, deal
from labkit.elastic.shards.book import forgiven


class DataLeases:
    """The leases of an asynchronous training; a synchronous one has none.

    `journal`: takes each record of the shard service before it has any effect.
    """

    def __init__(
        self, job: ControllerState, out: CommandBuffer, outcome: JobOutcome, *, journal: Journal | None = None
    ) -> None:
        self._job, self._out, self._outcome, self._journal = job, out, outcome, journal
        self._leases: Leases | None = None
        self._unheard: dict[tuple[int, int], int] = {}
        """Versions whose updates are committed but whose losses no event has, by token and end of their samples."""

    @property
    def active(self) -> bool:
        """Whether training is asynchronous, and has begun."""
        return self._leases is not None

    @property
    def done(self) -> bool:
        """Whether all updates of an asynchronous training are committed."""
        return self._leases is not None and self._leases.done

    def state(self) -> SavedShards | None:
        """Return the state of the leases for a checkpoint; None in synchronous training."""
        return None if self._leases is None else self._leases.state()

    # --- beginnings

    def open(self, queue: SavedShards | None) -> None:
        """Begin an era with the samples that a checkpoint leaves to do; None: with all."""
        terms = self._job.terms
        if terms.sync:
            return
        if queue is None:
            self._leases = Leases.opened(
                n_samples=terms.n_samples, batch=terms.batch, n_steps=terms.n_steps, seed=terms.seed,
                lease_s=terms.lease_s, journal=self._journal,
            )  # fmt: skip
        else:
            self._leases = Leases.restored(
                queue, era=self._job.era, n_steps=terms.n_steps, forgive=self._leases is None, journal=self._journal
            )
        self._job.progress = self._leases.n_done

    def replay(self, records: Iterable[Record], *, heard: Collection[int] = (), now_s: float) -> None:
        """Restore the leases of a controller that died from its journal; `heard`: versions whose losses it wrote."""
        self._leases = Leases.replayed(records, n_steps=self._job.terms.n_steps, journal=self._journal)
        self._leases.resume(now_s=now_s)
        rows = self._leases.service.ledger
        self._unheard = {(row.token, row.end): row.step for row in rows if row.step not in heard}
        self._job.progress = self._leases.n_done

    # --- requests and reports of workers

    def on_wants(self, member: Member) -> None:
        """Grant a lease to a worker that asks for one, or let it wait."""
        if self._leases is None:
            return
        if self._job.phase != "training":
            self._leases.wait(member.name)
            return
        try:
            grant = self._leases.ask(member.name, now_s=self._job.now_s)
        except PoisonShardError as error:
            self._outcome.end(_poisoned(error))
            return
        if grant is not None:
            self._grant(grant)

    def _grant(self, grant: Grant) -> None:
        self._out.tell(grant.worker, GrantLease(self._job.era, SampleLease(*grant[1:])))

    def on_update(self, member: Member, report: UpdateDone) -> None:
        """Enter a worker's update in the ledger, and grant the samples that become free to waiting workers."""
        if self._leases is None:
            return
        now_s, before = self._job.now_s, self._leases.n_done
        fate = self._leases.commit(report.token, until=report.until, now_s=now_s)
        self._job.progress = after = self._leases.n_done
        if fate is not Fate.COMMITTED:
            self._out.note("refused", name=member.name, token=report.token, fate=str(fate))
            self._out.tell(member.name, RevokeLease(report.token))
        elif after > before:
            self._note(member, report, version=after - 1)
        elif (version := self._unheard.pop((report.token, report.until), None)) is not None:
            self._note(member, report, version=version)
        self._serve(now_s)

    def _note(self, member: Member, report: UpdateDone, *, version: int) -> None:
        known = {"version": version, "name": member.name}
        self._out.add(Note("loss", {**known, "loss": report.loss, "staleness": report.staleness}))
        if report.metrics:
            self._out.add(Note("metrics", {**known, "values": report.metrics}))

    def _serve(self, now_s: float) -> None:
        if self._leases is None or self._job.phase != "training":
            return
        try:
            for grant in self._leases.serve(now_s=now_s):
                self._grant(grant)
        except PoisonShardError as error:
            self._outcome.end(_poisoned(error))

    def tell_worker(self, name: str) -> None:
        """Send its leases to a worker that was disconnected: some may have expired, some may be unknown to it."""
        if self._leases is not None:
            leases = [SampleLease(*grant[1:]) for grant in self._leases.grants(name)]
            self._out.tell(name, ConfirmLeases(self._job.era, self._leases.tokens(name), leases))

    # --- time and failures

    def tick(self, alive: Iterable[str], *, now_s: float) -> None:
        """Renew the leases of live workers, take back expired ones, and grant them to waiting workers."""
        if self._leases is None:
            return
        for lease in self._leases.tick([name for name in alive if name in self._job.members], now_s=now_s):
            self._out.note("expired", name=lease.worker, token=lease.token)
            self._out.tell(str(lease.worker), RevokeLease(lease.token))
        self._serve(now_s)

    def forget(self, name: str, *, died: bool = False) -> None:
        """Take back the leases of a worker that is gone; if it died, its samples count as tried."""
        if self._leases is not None:
            self._leases.leave(name, died=died)


def _poisoned(error: PoisonShardError) -> str:
    return f"{error.what} Look at these samples, and at the logs of these workers."


class Grant(NamedTuple):
    """Minibatches that a worker may process: positions `start` to before `end` in the order of an epoch."""

    worker: str
    token: int
    epoch: int
    start: int
    end: int


def _epochs(*, n_samples: int, batch: int, n_steps: int) -> int:
    return -(-n_steps * batch // n_samples) + 1


class Leases:
    """The minibatches of a training, each leased until it is committed: as many as there are updates to make.

    Minibatches are numbered through all epochs. Those from `n_steps` on are not needed: a lease that reaches so far is
    cut, and its rest is withheld from all workers. `service`: with `batch` as its smallest shard.
    """

    def __init__(self, service: ShardService, *, n_steps: int) -> None:
        self.service, self.n_steps = service, n_steps
        self.batch = service.plan.base_shard
        self._per_epoch = -(-service.plan.n_samples // self.batch)
        self._beyond = {lease.token for lease in service.held if self._is_beyond(lease.epoch, lease.start)}
        self._waiting: dict[str, None] = {}
        self.n_done = self._committed(service.state())

    @classmethod
    def opened(
        cls, *, n_samples: int, batch: int, n_steps: int, seed: int, lease_s: float, journal: Journal | None = None
    ) -> Leases:
        """Return the leases of a training that begins."""
        epochs = _epochs(n_samples=n_samples, batch=batch, n_steps=n_steps)
        service = ShardService(
            n_samples, epochs=epochs, seed=seed, base_shard=batch, lease_s=lease_s,
            target_s=lease_s, journal=journal,
        )  # fmt: skip
        return cls(service, n_steps=n_steps)

    @classmethod
    def restored(
        cls, state: SavedShards, *, era: int, n_steps: int, forgive: bool = False, journal: Journal | None = None
    ) -> Leases:
        """Return the leases of a checkpoint, from which an era begins; earlier leases are void.

        `forgive`: earlier failures of ranges do not count. This is for a job that resumes: its data may have been
        corrected since.
        """
        state = forgiven(state) if forgive else state
        plan = state.plan
        epochs = _epochs(n_samples=plan.n_samples, batch=plan.base_shard, n_steps=n_steps)  # n_steps may have grown
        state = replace(state, plan=replace(plan, epochs=max(epochs, plan.epochs)))
        generation = max(era, state.generation + 1)
        return cls(ShardService.from_state(state, generation=generation, journal=journal), n_steps=n_steps)

    @classmethod
    def replayed(cls, records: Iterable[Record], *, n_steps: int, journal: Journal | None = None) -> Leases:
        """Return the leases that a journal leads to, those in force included; `resume` sets the clock."""
        return cls(ShardService.replay(records, journal=journal), n_steps=n_steps)

    def resume(self, *, now_s: float) -> None:
        """Continue on another clock."""
        self.service.resume(now_s=now_s)

    def _committed(self, state: SavedShards) -> int:
        """Return how many minibatches are committed; all ranges begin at a multiple of the batch."""
        ranges = [*state.todo, *(lease.piece() for lease in state.held), *state.dead]
        missing = sum(-(-(piece.end - piece.start) // self.batch) for piece in ranges)
        return state.epoch * self._per_epoch + -(-state.cursor // self.batch) - missing

    # --- requests of workers

    def ask(self, worker: str, *, now_s: float) -> Grant | None:
        """Return the next grant of a worker; None: it waits, and `serve` grants it later, unless all is done."""
        lease = self.service.lease(worker, now_s=now_s)
        while lease is not None and (grant := self._cut(lease)) is None:
            self._beyond.add(lease.token)  # withheld from all workers
            lease = self.service.lease(worker, now_s=now_s)
        if lease is None:
            self.wait(worker)
            return None
        self._waiting.pop(worker, None)
        return grant

    def _cut(self, lease: ShardLease) -> Grant | None:
        first = lease.epoch * self._per_epoch + lease.start // self.batch
        n = min(-(-lease.size // self.batch), self.n_steps - first)
        if n < 1:
            return None
        end = min(lease.end, lease.start + n * self.batch)
        return Grant(str(lease.worker), lease.token, lease.epoch, lease.start, end)

    def wait(self, worker: str) -> None:
        """Note that a worker waits for a grant."""
        self._waiting[worker] = None

    def serve(self, *, now_s: float) -> list[Grant]:
        """Return grants for waiting workers, as far as samples are free."""
        grants = []
        for worker in list(self._waiting):
            grant = self.ask(worker, now_s=now_s)
            if grant is not None:
                grants.append(grant)
        return grants

    def commit(self, token: int, *, until: int, now_s: float) -> Fate:
        """Enter minibatches before `until` in the ledger, and count their updates; a repeated commit has no effect."""
        held = next((lease for lease in self.service.held if lease.token == token), None)
        fate = self.service.commit(token, now_s=now_s, until=until if held is not None else None, step=self.n_done)
        if held is not None and until > held.start:
            self.n_done += -(-(until - held.start) // self.batch)
            if any(lease.token == token for lease in self.service.held) and self._is_beyond(held.epoch, until):
                self._beyond.add(token)
        return fate

    def _is_beyond(self, epoch: int, start: int) -> bool:
        return epoch * self._per_epoch + start // self.batch >= self.n_steps

    def tokens(self, worker: str) -> list[int]:
        """Return the tokens of the leases that a worker holds."""
        return [lease.token for lease in self.service.held if lease.worker == worker]

    def grants(self, worker: str) -> list[Grant]:
        """Return the grants that a worker holds, as `ask` returned them."""
        held = [lease for lease in self.service.held if lease.worker == worker and lease.token not in self._beyond]
        return [grant for lease in held if (grant := self._cut(lease)) is not None]

    def leave(self, worker: str, *, died: bool = False) -> None:
        """Take back the leases of a worker that is gone; if it died, its current samples count as tried."""
        self._waiting.pop(worker, None)
        at_work = [token for token in self.tokens(worker) if token not in self._beyond]
        if died and at_work:
            self.service.fail(min(at_work), reason="its process died")
        self._beyond -= {lease.token for lease in self.service.leave(worker)}

    def tick(self, alive: Iterable[str], *, now_s: float) -> list[ShardLease]:
        """Renew the leases of live workers, and return those that have expired."""
        for worker in alive:
            self.service.renew(worker, now_s=now_s)
        for token in list(self._beyond):
            self.service.renew_token(token, now_s=now_s)
        late = list(self.service.expire(now_s=now_s))
        self._beyond -= {lease.token for lease in late}
        return late

    @property
    def done(self) -> bool:
        """Whether every update has been made and committed."""
        return self.n_done >= self.n_steps

    def state(self) -> SavedShards:
        """Return the state of the leases for a checkpoint."""
        return self.service.state()


class ShardAssignment:
    """Deals the logical shards of synchronous training to workers, by their measured speed."""

    def __init__(self, job: ControllerState, out: CommandBuffer) -> None:
        self._job, self._out = job, out
        self._balance = ShardBalance()

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return the logical shards of each worker that has joined."""
        return self._dealt([m.name for m in self._job.of("worker") if m.joined])

    def deal(self) -> None:
        """Deal the logical shards anew to workers that have begun; the others get none for now."""
        job = self._job
        if not job.terms.sync:
            return
        workers = [m.name for m in job.of("worker") if m.joined and m.begun]
        for member in job.members.values():
            if member.role == "worker" and member.joined and member.name not in workers:
                self._out.tell(member.name, AssignShards(0, 0))
        for name, leaves in self._dealt(workers).items():
            self._out.tell(name, AssignShards(*leaves))

    def measured(self, worker: Member, report: StepDone, *, may_deal: bool) -> None:
        """Note how long a step took a worker; deal anew if that would make steps clearly shorter, and if allowed."""
        self._balance.measured(worker.name, n_shards=report.shards, seconds=report.compute_s)
        if may_deal and self._balance.uneven():
            self.deal()
            self._out.note("dealt", leaves=dict(self._balance.ranges))

    def _dealt(self, workers: Sequence[str]) -> dict[str, tuple[int, int]]:
        return self._balance.dealt(workers, n_shards=self._job.terms.n_shards)


FRESH: Final = 5
"""Steps of each worker after which its speed counts as known."""

WORTH: Final = 0.8
"""Shards are dealt anew if a step is then expected to take at most this part of its present time."""

FORGET: Final = 1.05
"""Factor on the assumed speed of a worker without shards, per step: it is tried again after some."""

Ranges = Mapping[str, tuple[int, int]]


class ShardBalance:
    """Shards per second of each worker.

    Examples
    --------
    >>> speeds = ShardBalance()
    >>> speeds.dealt(["a", "b"], n_shards=8)
    {'a': (0, 4), 'b': (4, 8)}
    >>> for _ in range(FRESH):
    ...     speeds.measured("a", n_shards=4, seconds=1.0)
    ...     speeds.measured("b", n_shards=4, seconds=4.0)
    >>> speeds.uneven()
    True
    >>> speeds.dealt(["a", "b"], n_shards=8)
    {'a': (0, 7), 'b': (7, 8)}
    """

    def __init__(self) -> None:
        self._speeds: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self.ranges: Ranges = {}  # shards of each worker, from first to before last

    def measured(self, worker: str, *, n_shards: int, seconds: float) -> None:
        """Note how long some shards of a step took a worker; earlier steps count by a harmonic mean."""
        if worker not in self.ranges:
            return
        self._counts[worker] = self._counts.get(worker, 0) + 1
        if n_shards < 1 or seconds <= 0:
            if worker in self._speeds:
                self._speeds[worker] *= FORGET
            return
        speed = n_shards / seconds
        known = self._speeds.get(worker, speed)
        self._speeds[worker] = 4 / (3 / known + 1 / speed)

    def dealt(self, workers: Sequence[str], *, n_shards: int) -> dict[str, tuple[int, int]]:
        """Return the shards that each worker should compute; a worker of unknown speed counts as the mean."""
        if not workers:
            return {}
        ranges = _cut(n_shards, self._of(workers))
        self.ranges, self._counts = ranges, {}
        return ranges

    def uneven(self) -> bool:
        """Return whether dealing the shards anew would make steps clearly shorter."""
        workers = list(self.ranges)
        if len(workers) < 2 or any(self._counts.get(worker, 0) < FRESH for worker in workers):
            return False
        speeds = self._of(workers)
        n_shards = max(last for _, last in self.ranges.values())
        return _longest(_cut(n_shards, speeds), speeds) <= WORTH * _longest(self.ranges, speeds)

    def _of(self, workers: Iterable[str]) -> dict[int | str, float]:
        known = [self._speeds[worker] for worker in workers if worker in self._speeds]
        mean = sum(known) / len(known) if known else 1.0
        return {worker: self._speeds.get(worker, mean) for worker in workers}


def _cut(n_shards: int, speeds: Mapping[int | str, float]) -> dict[str, tuple[int, int]]:
    return {str(name): (leaves.start, leaves.stop) for name, leaves in deal(n_shards, speeds).items()}


def _longest(ranges: Ranges, speeds: Mapping[int | str, float]) -> float:
    return max((last - first) / speeds[worker] for worker, (first, last) in ranges.items())
