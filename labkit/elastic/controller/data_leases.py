"""Leases of samples to asynchronous workers: grants, commits and expiry."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from labkit.elastic.controller.command_buffer import CommandBuffer
from labkit.elastic.controller.controller_state import ControllerState, Member
from labkit.elastic.controller.minibatches import Grant, Leases
from labkit.elastic.controller.outcome import JobOutcome
from labkit.elastic.protocol.commands import Note
from labkit.elastic.protocol.messages.orders import ConfirmLeases, GrantLease, RevokeLease, SampleLease
from labkit.elastic.protocol.messages.reports import UpdateDone
from labkit.elastic.shards import Fate, Journal, PoisonShardError, Record, SavedShards


class DataLeases:
    """The leases of an asynchronous training; a synchronous one has none.

    Parameters
    ----------
    job : ControllerState
        With the workers.
    out : CommandBuffer
        For messages to workers.
    outcome : JobOutcome
        Ends the job if some samples kill every worker that reads them.
    journal : callable, optional
        Takes each record of the shard service before it has any effect.
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
        """Return what a checkpoint keeps of the leases; None in synchronous training."""
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
        """Write the loss of an update, and its metrics."""
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
        """Tell a worker that was disconnected its leases: some may have expired, of some it may not have heard."""
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
