"""Cells on a Dask cluster: the same outcomes as on the processes of one machine.

A task costs the scheduler, the worker and this process some milliseconds each, so short cells go several to a task.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from labkit.core.errors import InputError, SweepError
from labkit.experiment.cell import CellOutcome, failed, run_cell
from labkit.experiment.grid import Cell
from labkit.experiment.inputs import Inputs
from labkit.experiment.lengths import Lengths
from labkit.system.release import how_to_get

if TYPE_CHECKING:
    from distributed import Client, Security, Worker

CONNECT_S = 10.0
TASK_S, MOST_CELLS = 2.0, 64
"""Cells of one task: so many whose expected seconds together are no more."""
AHEAD: Final = 3
"""Tasks on the cluster for each of its threads: one runs, others wait there."""
LOOK_AFTER_S: Final = 2.0
"""How often it is asked how many threads the cluster has: workers come and go."""


class GivenInputs:
    """What cells are made of, on every worker: those that are there, and those that join or start again later."""

    idempotent = True

    def __init__(self, name: str, inputs: Inputs) -> None:
        self.name, self.inputs = name, inputs

    def setup(self, worker: Worker) -> None:
        """Take it to a worker."""

    def teardown(self, worker: Worker) -> None:
        """Nothing has to be undone."""


def on_dask(cells: Sequence[Cell], *, inputs: Inputs, client: Client, keep: bool = False) -> Iterator[CellOutcome]:
    """Run cells on a cluster, and give each outcome as it comes; closing the iterator cancels what is left.

    A cell that takes its worker with it is tried on others, as often as the cluster allows
    (`distributed.scheduler.allowed-failures`), and then has failed. Cells that shared its task are tried by themselves.
    Raise SweepError if the cluster is lost.
    """
    sweep = f"labkit-{uuid4().hex[:12]}"
    client.register_plugin(_plugin(sweep, inputs))
    tasks = _Tasks(client, sweep, cells, keep=keep)
    try:
        yield from tasks.outcomes()
    finally:
        _leave(client, sweep, list(tasks.running))


class _Tasks:
    """What the cluster was given, and what waits here."""

    def __init__(self, client: Client, sweep: str, cells: Sequence[Cell], *, keep: bool) -> None:
        self._client, self._sweep, self._keep = client, sweep, keep
        self._waiting = deque(cells)
        self._alone: deque[Cell] = deque()  # their task failed as a whole: each is tried by itself
        self._lengths = Lengths()
        self._n_threads, self._looked_s = 1, -LOOK_AFTER_S
        self.running: dict[Any, list[Cell]] = {}
        """Future of a task -> its cells."""

    def outcomes(self) -> Iterator[CellOutcome]:
        """Run everything."""
        from distributed import as_completed

        done = as_completed(self._submitted(), loop=self._client.loop, with_results=True, raise_errors=False)
        for future, result in done:
            cells = self.running.pop(future)
            outcomes = self._taken(future, result, cells)
            for outcome in outcomes:
                self._lengths.note(outcome.cell, outcome.wall_s)
            done.update(self._submitted())  # before the caller keeps what came
            future.release()
            yield from outcomes

    def _taken(self, future: Any, result: Any, cells: list[Cell]) -> list[CellOutcome]:
        """Return the outcomes of a task; where it failed as a whole, its cells are tried one by one."""
        if future.status == "finished":
            return list(result)
        if future.status != "error":
            raise SweepError(f"the Dask cluster was lost ({future.status}) while cells were running.")
        if len(cells) > 1:
            self._alone.extend(cells)
            return []
        return [_failed_there(cells[0], future.exception())]

    def _submitted(self) -> list[Any]:
        """Give the cluster tasks, as long as it has few; return their futures."""
        new = []
        while (self._alone or self._waiting) and len(self.running) < AHEAD * self._threads():
            cells = [self._alone.popleft()] if self._alone else self._batch()
            key = f"{self._sweep}-{cells[0].id}-{len(cells)}"
            future = self._client.submit(_run, cells, self._sweep, self._keep, pure=False, key=key)
            self.running[future] = cells
            new.append(future)
        return new

    def _batch(self) -> list[Cell]:
        """Return the cells of the next task: fewer towards the end, so that all threads end together."""
        fair = 1 + len(self._waiting) // (AHEAD * self._n_threads)
        return self._lengths.batch(
            self._waiting, at_most_s=TASK_S, at_most=1 if self._keep else min(MOST_CELLS, fair)
        )  # fmt: skip

    def _threads(self) -> int:
        """Return how many cells the cluster can run at a time."""
        if time.monotonic() - self._looked_s >= LOOK_AFTER_S:
            self._n_threads = max(1, sum(self._client.nthreads().values()))
            self._looked_s = time.monotonic()
        return self._n_threads


@contextmanager
def connect(address: str | None) -> Iterator[Client | None]:
    """Lend a connection to a cluster: an address, or the folder with address and certificates that `dask_up` wrote.

    None lends None: nothing is asked of a cluster. Raise InputError if nothing answers there.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise InputError(f"a Dask cluster needs the package distributed: {how_to_get('distributed')}.") from None
    folder = Path(address)
    security = None
    if folder.is_dir():
        address, security = _read_folder(folder)
    try:
        client = Client(address, timeout=CONNECT_S, security=security, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address} ({error}); check the address.") from error
    with client:
        yield client


def _read_folder(folder: Path) -> tuple[str, Security]:
    """Return the address and the certificates of a cluster, as `labkit.testbed.dask.up` writes them."""
    from distributed import Security

    try:
        address = (folder / "address").read_text("utf-8").strip()
    except FileNotFoundError:
        raise InputError(f"{folder / 'address'} is not there; `fab dask-up` writes it.") from None
    names = {"ca_file": "authority.pem", "client_cert": "client.pem", "client_key": "client.key"}
    return address, Security(
        require_encryption=True, **{f"tls_{key}": str(folder / name) for key, name in names.items()}
    )


def _plugin(sweep: str, inputs: Inputs) -> Any:
    from distributed import WorkerPlugin

    class _InputsPlugin(GivenInputs, WorkerPlugin):  # type: ignore[misc]
        pass

    return _InputsPlugin(sweep, inputs)


def _failed_there(cell: Cell, error: BaseException) -> CellOutcome:
    if type(error).__name__ == "KilledWorker":
        return CellOutcome(cell, {}, error="the worker processes that had it died, each time with this cell")
    return failed(cell, error)


def _leave(client: Client, sweep: str, futures: list[Any]) -> None:
    """Cancel what is left and take the inputs away; a cluster that is gone already has nothing left."""
    if client.status != "running":
        return
    if futures:
        client.cancel(futures, force=True)
    client.unregister_worker_plugin(sweep)


def _run(cells: Sequence[Cell], sweep: str, keep: bool) -> list[CellOutcome]:
    from distributed import get_worker

    inputs: Inputs = get_worker().plugins[sweep].inputs
    return [run_cell(cell, inputs=inputs, keep=keep) for cell in cells]
