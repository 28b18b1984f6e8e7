"""Cells on a Dask cluster: the same outcomes as on the processes of one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from labkit.core.errors import InputError, SweepError
from labkit.experiment.cell import CellOutcome, failed, run_cell
from labkit.experiment.grid import Cell
from labkit.experiment.inputs import Inputs
from labkit.release import EVERYTHING

if TYPE_CHECKING:
    from distributed import Client, Security, Worker

CONNECT_S = 10.0


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
    (`distributed.scheduler.allowed-failures`), and then has failed.

    Raises
    ------
    SweepError
        If the cluster is lost.
    """
    from distributed import as_completed

    sweep = f"labkit-{uuid4().hex[:12]}"
    client.register_plugin(_plugin(sweep, inputs))
    futures = {
        client.submit(_run, cell, sweep, keep, pure=False, key=f"{sweep}-{cell.id}"): cell for cell in cells
    }  # fmt: skip
    try:
        for future in as_completed(list(futures), loop=client.loop):
            cell = futures.pop(future)
            yield _outcome(future, cell)
            future.release()
    finally:
        _leave(client, sweep, list(futures))


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """Lend a connection to a cluster: an address, or the folder with address and certificates that `dask_up` wrote.

    Raises
    ------
    InputError
        If nothing answers there.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError(f"a Dask cluster needs the package distributed: {EVERYTHING}.") from None
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

    class Given(GivenInputs, WorkerPlugin):  # type: ignore[misc]
        pass

    return Given(sweep, inputs)


def _outcome(future: Any, cell: Cell) -> CellOutcome:
    if future.status == "finished":
        outcome: CellOutcome = future.result()
        return outcome
    if future.status == "error":
        error = future.exception()
        if type(error).__name__ == "KilledWorker":
            return CellOutcome(cell, {}, error="the worker processes that had it died, each time with this cell")
        return failed(cell, error)
    raise SweepError(f"the Dask cluster was lost ({future.status}) while cells were running.")


def _leave(client: Client, sweep: str, futures: list[Any]) -> None:
    """Cancel what is left and take the inputs away; a cluster that is gone already has nothing left."""
    if client.status != "running":
        return
    if futures:
        client.cancel(futures, force=True)
    client.unregister_worker_plugin(sweep)


def _run(cell: Cell, sweep: str, keep: bool) -> CellOutcome:
    from distributed import get_worker

    inputs: Inputs = get_worker().plugins[sweep].inputs
    return run_cell(cell, inputs=inputs, keep=keep)
