"""Asynchronous training as its controller sees it: which worker has which samples, and what is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from labkit.elastic.controller.members import JobTerms, Member, Reassign
from labkit.elastic.controller.minibatches import Grant, Leases
from labkit.elastic.controller.scaling import Scaler
from labkit.elastic.protocol.commands import Command, Note
from labkit.elastic.shards import Fate, Journal, PoisonShardError, Record


class DataLeases(Scaler):
    """Leases of an asynchronous training; a synchronous one has none."""

    def __init__(self, terms: JobTerms, *, reassign: Reassign, journal: Journal | None = None) -> None:
        super().__init__(terms, reassign=reassign)
        self.leases: Leases | None = None
        self._journal = journal

    # --- leases

    def _open_leases(self, queue: Mapping[str, Any] | None) -> None:
        """Begin an era with what a checkpoint says is left to do."""
        terms = self.terms
        if terms.sync:
            return
        if queue is None:
            self.leases = Leases.opened(
                n_samples=terms.n_samples, batch=terms.batch, n_steps=terms.n_steps, seed=terms.seed,
                lease_s=terms.lease_s, journal=self._journal,
            )  # fmt: skip
        else:
            self.leases = Leases.restored(queue, era=self.era, n_steps=terms.n_steps, journal=self._journal)
        self.progress = self.leases.n_done

    def _replay_leases(self, records: Iterable[Record], *, now_s: float) -> None:
        """Go on with the leases of a controller that died."""
        self.leases = Leases.replayed(records, n_steps=self.terms.n_steps, journal=self._journal)
        self.leases.resume(now_s=now_s)
        self.progress = self.leases.n_done

    def _on_wants(self, member: Member, columns: Mapping[str, Any]) -> None:
        if self.leases is None:
            return
        if self.phase != "training":
            self.leases.wait(member.name)
            return
        try:
            grant = self.leases.ask(member.name, now_s=columns["now_s"])
        except PoisonShardError as error:
            self._end(_poisoned(error))
            return
        if grant is not None:
            self._grant(grant)

    def _grant(self, grant: Grant) -> None:
        self._tell(grant.worker, do="lease", era=self.era, lease=grant[1:])

    def _committed(self, member: Member, columns: Mapping[str, Any]) -> None:
        """Enter an update of an asynchronous worker in the ledger, and let others have what it makes free."""
        assert self.leases is not None
        now_s, before = columns["now_s"], self.leases.n_done
        self._unmoved.discard(member.name)
        self._step_s[member.name] = float(columns.get("compute_s", 0.0)) + float(columns.get("wait_s", 0.0))
        fate = self.leases.commit(columns["token"], until=columns["until"], now_s=now_s)
        self.progress = self.leases.n_done
        if fate is not Fate.COMMITTED:
            self._out.append(Note("refused", {"name": member.name, "token": columns["token"], "fate": str(fate)}))
            self._tell(member.name, do="lost", token=columns["token"])
        elif self.progress > before:
            told = {key: columns[key] for key in ("loss", "staleness")}
            self._out.append(Note("loss", {"version": self.progress - 1, "name": member.name, **told}))
        self._serve(now_s)

    def _serve(self, now_s: float) -> None:
        if self.leases is None or self.phase != "training":
            return
        try:
            for grant in self.leases.serve(now_s=now_s):
                self._grant(grant)
        except PoisonShardError as error:
            self._end(_poisoned(error))

    def _tell_leases(self, name: str) -> None:
        """Tell a worker that was away what is its own: some it may have lost since, of some it may never have heard."""
        if self.leases is not None:
            grants = [list(grant[1:]) for grant in self.leases.grants(name)]
            self._tell(name, do="leases", era=self.era, tokens=self.leases.tokens(name), grants=grants)

    def _forget_worker(self, name: str, *, died: bool = False) -> None:
        """Take back what somebody has who is gone; samples that kill whoever reads them are found out."""
        if self._still is not None:
            self._still.waiting.discard(name)
        self._unmoved.discard(name)
        self._step_s.pop(name, None)
        if self.leases is not None:
            self.leases.leave(name, died=died)

    def tick(self, alive: Iterable[str], *, now_s: float) -> list[Command]:
        """Renew the leases of workers that are alive, take back those that have expired, and end idle standstills."""
        self.now_s = now_s
        if self.leases is not None:
            late = self.leases.tick([name for name in alive if name in self.members], now_s=now_s)
            for lease in late:
                self._out.append(Note("expired", {"name": lease.worker, "token": lease.token}))
                self._tell(str(lease.worker), do="lost", token=lease.token)
            self._serve(now_s)
            self._give_up_still(now_s)
        return self._taken()


def _poisoned(error: PoisonShardError) -> str:
    return f"{error.what} Look at these samples, and at the logs of these workers."
