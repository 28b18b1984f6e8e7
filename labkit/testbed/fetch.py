"""Bring the folder of a run back from all hosts: logs, events, whatever its tasks wrote; never a key."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path

from labkit.core.errors import InputError
from labkit.testbed.agent.wire import Refused, check_name
from labkit.testbed.errors import HostError
from labkit.testbed.fleet import Fleet
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source
from labkit.testbed.outcomes import Outcome, Outcomes, failure, said
from labkit.testbed.run_names import called, no_such
from labkit.testbed.together import together

PATIENCE_S = 60.0
WINDOW = 1 << 20


def fetch(fleet: Fleet, run: str = "", *, folder: str | Path = "runs") -> Outcomes:
    """Copy what a run left on the hosts to the run's folder here, RUN/hosts/HOST, whole or not at all.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    run : str
        Its name, that of its record here will do; by default, and of several, the one that was written to last.
    folder : str or Path
        Where runs are kept here.

    Returns
    -------
    Outcomes
        One row per host, with `files` and `bytes` that came.

    Raises
    ------
    InputError
        If the name is none that a run can have, or no host has such a run.
    """
    try:
        run = _latest(fleet, check_name(run, "run") if run else "")
    except Refused as error:
        raise InputError(f"{error}.") from None
    target = _home(Path(folder), run) / "hosts"

    def one(machine: Machine) -> Outcome:
        try:
            return _fetched(fleet, machine, run, target)
        except HostError as error:
            return failure(machine.name, error)
        except TimeoutError:
            return Outcome(machine.name, False, f"nothing came for {PATIENCE_S:g} s", "run it again")
        except (tarfile.TarError, OSError) as error:
            return Outcome(
                machine.name, False, f"{target / machine.name}: {error}", "run it again; is there room here?"
            )

    return Outcomes.of(together(one, fleet.inventory, give_up=fleet.close))


def _home(folder: Path, run: str) -> Path:
    """Return the folder of a run here: that of its record, which may have another name than the run has on hosts."""
    for state in folder.glob("*/testbed.json"):
        with suppress(OSError, ValueError, AttributeError):
            if json.loads(state.read_bytes()).get("run") == run:
                return state.parent
    return folder / run


def _latest(fleet: Fleet, run: str) -> str:
    """Return the run of that name, or any, that was written to last on any host; the hosts' clocks decide."""
    written: dict[str, float] = {}
    silent = False
    for answer in fleet.run(lambda machine: [machine.python, "-c", source("pack"), machine.folder]):
        told = said(answer, program="pack")
        silent |= isinstance(told, Outcome)
        for name, moment_s in {} if isinstance(told, Outcome) else told["runs"].items():
            written[name] = max(moment_s, written.get(name, moment_s))
    meant = called(run, written) if run else list(written)
    if run and not meant:
        if silent:
            return run  # who does not answer may have it
        raise no_such(run, written)
    if not meant:
        raise InputError("no run on any host that answers; `fab status` shows what is there.")
    return max(meant, key=lambda name: written[name])


def _fetched(fleet: Fleet, machine: Machine, run: str, target: Path) -> Outcome:
    final, beside = target / machine.name, target / f".{machine.name}.part"
    target.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with fleet.stream(machine, [machine.python, "-c", source("pack"), machine.folder, run]) as stream:
            stream.settimeout(PATIENCE_S)
            files = _unpack(io.BufferedReader(stream, WINDOW), beside)
        if not beside.exists():
            return Outcome(machine.name, True, f"no run {run}", numbers={"files": 0, "bytes": 0})
        shutil.rmtree(final, ignore_errors=True)
        beside.replace(final)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    told = f"{len(files)} files, {sum(files) / 1e6:.2f} MB, in {final}"
    return Outcome(machine.name, True, told, numbers={"files": len(files), "bytes": sum(files)})


def _unpack(stream: io.BufferedReader, place: Path) -> list[int]:
    """Unpack a tar file as it comes, nothing outside of a folder; return the sizes of its files."""
    sizes = []
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            place.mkdir(exist_ok=True)
            archive.extract(member, place, filter="data")
            if member.isfile():
                sizes.append(member.size)
    return sizes
