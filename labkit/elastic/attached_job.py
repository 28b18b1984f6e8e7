"""Attach to a job that another process has started, or an earlier one that is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.core.errors import InputError
from labkit.elastic.arguments import checked_folder
from labkit.elastic.attached_controller import AttachedController, controller_pid, is_over
from labkit.elastic.job import Job
from labkit.elastic.protocol.program import Program, find_modules
from labkit.elastic.protocol.spec import SPEC, Spec


class AttachedJob(Job):
    """A job that another process has started: all that `Job` does, but leaving its `with` block does not end it."""

    def _attended(self) -> AttachedController:
        """Return the controller, started elsewhere."""
        return AttachedController(self.folder, lease_s=self._spec.lease_s, ended=self._ended)

    def host_home(self, host: str) -> bytes:
        """Raise InputError: the key of the job is in the process that started it."""
        raise InputError(f"the files of host '{host}' have a key that only the process has which started the job.")

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """Close the connection; the job goes on."""
        self._client.close()


def attach(folder: Path | str) -> Job:
    """Return the job in a folder, of this user and on this machine, that another process has started.

    It can be watched, scaled, stopped and waited for from here, too. Start it with `start(..., detached=True)` if it is
    to outlive the process that starts it, such as a notebook's kernel. A job that is over has its result.

    Parameters
    ----------
    folder : Path or str
        That of `start(folder=...)`.

    Raises
    ------
    InputError
        If no job was started there, or the job ended without a word.
    """
    home = checked_folder(folder)
    if home is None or not (home / SPEC).exists():
        raise InputError(f"no job was started in {folder}; expected the folder of start(folder=...).")
    if not controller_pid(home) and not is_over(home):
        raise InputError(
            f"the job in {home} has no controller: it ended with the process that started it (detached=True lets it go "
            "on). start(..., folder=...) goes on from its newest checkpoint."
        )
    find_modules(Spec.load(home).paths)
    program: Any = Program.load(home)
    return AttachedJob(home, program, keep=True)
