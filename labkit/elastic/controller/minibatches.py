"""Leases of minibatches in asynchronous training: the shard service, cut into as many as there are updates to make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from labkit.elastic.shards import Fate, Journal, Record, SavedShards, ShardLease, ShardService
from labkit.elastic.shards.saved import forgiven


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
    cut, and its rest is withheld from all workers.

    Parameters
    ----------
    service : ShardService
        With `batch` as its smallest shard.
    n_steps : int
        Updates of the whole training.
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
        """Return what a checkpoint keeps of the leases."""
        return self.service.state()
