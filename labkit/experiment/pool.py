"""Cells on processes of this machine: a worker that dies names its cell, and the others go on.

Each worker is a process pool of one. A pool of many tells only that one of its processes died and ends them all; here
it is known which cell the dead one had, and no other cell is lost. A worker whose cell is a short one has the next one
already, so that it does not wait for this process.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from labkit.core.errors import SweepError
from labkit.experiment.cell import CellOutcome, failed, run_cell
from labkit.experiment.grid import Cell
from labkit.experiment.inputs import Inputs
from labkit.experiment.lengths import Lengths

SHORT_S: Final = 0.5
"""Behind a cell that is expected to take no longer, the next one waits at the worker."""
TRIES: Final = 2
"""How often a cell may take its worker with it."""

ONE_THREAD: Final = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    ),
    "1",
)
"""Libraries read these when they are loaded: workers would take each other's cores otherwise."""


def on_pool(cells: Sequence[Cell], *, inputs: Inputs, workers: int, keep: bool = False) -> Iterator[CellOutcome]:
    """Run cells on so many processes, and give each outcome as it comes; closing the iterator ends the processes.

    Raise SweepError if no process can be started.
    """
    with NamedTemporaryFile(prefix="labkit-sweep-") as file:
        file.write(pickle.dumps((inputs, keep)))
        file.flush()
        team = _Team(file.name, cells)
        try:
            yield from team.outcomes(workers)
        except BaseException:
            team.kill()
            raise
        finally:
            team.dismiss()


@dataclass(frozen=True, slots=True)
class _Try:
    """A cell, and how often it was tried, this time too."""

    cell: Cell
    number: int = 1


@dataclass(eq=False)
class _Worker:
    """A pool of one process, and what it was given: the first is the one that it runs."""

    pool: ProcessPoolExecutor
    process: Any
    assigned: deque[tuple[_Try, Future[CellOutcome]]] = field(default_factory=deque)


class _Team:
    """The workers, what each of them is doing, and what waits."""

    def __init__(self, inputs: str, cells: Sequence[Cell]) -> None:
        # `inputs`: a file. What is sent to a process that ends as it starts blocks the sender if it fills the pipe
        self._inputs = inputs
        self._waiting = deque(_Try(cell) for cell in cells)
        self._busy: dict[Future[Any], _Worker] = {}
        self._workers: list[_Worker] = []
        self._lengths = Lengths()

    def outcomes(self, n_workers: int) -> Iterator[CellOutcome]:
        """Run everything."""
        for _ in range(min(n_workers, len(self._waiting))):
            self._hire()
        while self._busy:
            for future in wait(self._busy, return_when=FIRST_COMPLETED).done:
                worker = self._busy.get(future)
                if worker is not None:  # else it was taken with another one of the same worker
                    yield from self._settle(worker, worker.assigned[0][1] if worker.assigned else future)

    def kill(self) -> None:
        """End all workers at once, whatever they are doing."""
        for worker in self._workers:
            if worker.process is not None:
                with suppress(ProcessLookupError, ValueError):
                    worker.process.kill()

    def dismiss(self) -> None:
        """Wait until all workers are gone."""
        for worker in self._workers:
            worker.pool.shutdown(wait=True, cancel_futures=True)

    def _settle(self, worker: _Worker, future: Future[Any]) -> Iterator[CellOutcome]:
        """Take what a worker brings, and give it the next cells."""
        del self._busy[future]
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            yield from self._bury(worker)
            return
        if not worker.assigned:
            if error is not None:
                raise error
            here = {process.pid: process for process in multiprocessing.active_children()}
            worker.process = here.get(future.result(), worker.process)
            self._supply(worker)
            return
        cell = worker.assigned.popleft()[0].cell
        outcome = future.result() if error is None else failed(cell, error)
        self._lengths.note(cell, outcome.wall_s)
        self._supply(worker)  # before the caller keeps what came, so that the worker does not wait for that
        yield outcome

    def _bury(self, worker: _Worker) -> Iterator[CellOutcome]:
        """Replace a dead worker; the cell that it ran is tried once more, and then has failed."""
        worker.pool.shutdown(wait=True)
        self._workers.remove(worker)
        self._busy = {future: other for future, other in self._busy.items() if other is not worker}
        said = _ending(None if worker.process is None else worker.process.exitcode)
        if not worker.assigned:
            raise SweepError(_cannot_start(said))
        ran, *next_ones = (given for given, _ in worker.assigned)
        self._waiting.extendleft(reversed(next_ones))
        if ran.number < TRIES:
            self._waiting.appendleft(_Try(ran.cell, ran.number + 1))
        else:
            yield CellOutcome(ran.cell, {}, error=f"{said}, {TRIES} times, each time with this cell")
        if self._waiting:
            self._hire()

    def _hire(self) -> None:
        """Start a worker; it says hello before it gets a cell, so that one that cannot start blames none."""
        pool = ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(self._inputs,)
        )
        with _quiet_start():
            before = set(multiprocessing.active_children())
            hello = pool.submit(os.getpid)
            new = set(multiprocessing.active_children()) - before
            worker = _Worker(pool, new.pop() if len(new) == 1 else None)
            self._workers.append(worker)
            self._busy[hello] = worker

    def _supply(self, worker: _Worker) -> None:
        """Give a worker a cell to run, and a next one behind a short one."""
        while self._waiting and self._may_have_another(worker):
            given = self._waiting.popleft()
            try:
                future: Future[CellOutcome] = worker.pool.submit(_run, given.cell)
            except BrokenProcessPool as error:  # it was killed while it waited
                future = Future()
                future.set_exception(error)
            worker.assigned.append((given, future))
            self._busy[future] = worker

    def _may_have_another(self, worker: _Worker) -> bool:
        """Return whether a worker has nothing, or one cell alone that is expected to be short."""
        alone = worker.assigned[0][0].cell if len(worker.assigned) == 1 else None
        return not worker.assigned or (alone is not None and self._lengths.expected_s(alone) <= SHORT_S)


def _ending(code: int | None) -> str:
    """Say how a process ended."""
    if code is None or code >= 0:
        return f"its worker process ended by itself (exit code {'unknown' if code is None else code})"
    name = signal.Signals(-code).name
    return f"its worker process was killed ({name}{': out of memory?' if name == 'SIGKILL' else ''})"


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Start processes that leave Ctrl-C to this one, and whose libraries use one thread each."""
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)  # Ctrl-C that came meanwhile is heard here


def _cannot_start(reason: str) -> str:
    return (
        f"no worker can start: {reason} before it had a cell (what it said is above). In a script, call sweep() under "
        "'if __name__ == \"__main__\":', for each worker imports the script; or run in this process: workers=0."
    )


_inputs: tuple[Inputs, bool] | None = None


def _begin(inputs: str) -> None:
    """Take what cells are made of from a file, and end when the parent does."""
    global _inputs
    _inputs = pickle.loads(Path(inputs).read_bytes())
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(cell: Cell) -> CellOutcome:
    if _inputs is None:
        raise SweepError("a worker that was given nothing has no cells to run.")
    inputs, keep = _inputs
    return run_cell(cell, inputs=inputs, keep=keep)
