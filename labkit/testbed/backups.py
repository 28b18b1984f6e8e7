"""The newest checkpoint of each job, kept here: a job goes on elsewhere when it is moved, or its host is gone."""

from __future__ import annotations

from pathlib import Path

from labkit.testbed.errors import FileError
from labkit.testbed.fleet import Fleet
from labkit.testbed.inventory import Machine

CHUNK = 1 << 20
ATTEMPTS, PATIENCE_S = 3, 10.0
SAVED = "job/checkpoints"
"""Of the folder of a job's task: where its checkpoints are."""


class Backups:
    """Checkpoints on this machine, a tar file for each job.

    Parameters
    ----------
    fleet : Fleet
        Connections to the hosts.
    folder : Path
        Where they are kept.
    run : str
        Whose they are, on the hosts.
    """

    def __init__(self, fleet: Fleet, folder: Path, *, run: str) -> None:
        self._fleet, self._folder, self._run = fleet, folder, run

    def path(self, task: str) -> Path:
        """Return where the checkpoints of a task are kept."""
        return self._folder / f"{task}.tar"

    def fetch(self, machine: Machine, *, folder: str, task: str) -> None:
        """Bring the checkpoints of a task here; those kept before stay until the new ones are whole.

        Raises
        ------
        HostError
            If it does not succeed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{task}.tar"
        for _ in range(ATTEMPTS):  # the job may remove an old checkpoint just then
            why = self._read(machine, ["tar", "-C", folder, "--exclude=.*", "-cf", "-", SAVED], partial)
            if not why:
                partial.rename(self.path(task))
                return
        partial.unlink()
        raise FileError(f"host {machine.name}: the checkpoints of {task} cannot be read: {why}")

    def _read(self, machine: Machine, argv: list[str], target: Path) -> str:
        """Write what a program there says into a file; return why that failed, nothing if it did not."""
        with self._fleet.stream(machine, argv) as stream, target.open("wb") as file:
            while data := stream.read(CHUNK):
                file.write(data)
            exited = stream.wait(PATIENCE_S)
            return "" if exited == 0 else stream.errors[-300:].strip() or f"{argv[0]} ended with {exited}"

    def bring(self, machine: Machine, *, task: str) -> str:
        """Bring the checkpoints of a task to a host; return where below its folder they are, "" if there are none.

        Raises
        ------
        FleetError
            If it does not succeed.
        """
        if not self.path(task).exists():
            return ""
        there = f"incoming/{self._run}-{task}.tar"
        self._fleet.run(["mkdir", "-p", machine.path("incoming")], only=[machine.name]).checked()
        self._fleet.put(self.path(task), there, only=[machine.name]).checked()
        return there

    def forget(self, task: str) -> None:
        """Remove what is kept of a task."""
        self.path(task).unlink(missing_ok=True)
