"""Copy the folder of a run from all hosts: logs, events and other files of its tasks, without keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from labkit.core.below import Below
from labkit.core.errors import InputError
from labkit.testbed.agent.wire import NAME, Refusal, check_name, wall_s
from labkit.testbed.errors import FileError, HostError
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source
from labkit.testbed.run.names import called, no_such
from labkit.testbed.ssh.entries import Entries
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.frames import HostMessages, readable
from labkit.testbed.ssh.outcomes import HostOutcome, Outcomes, failure
from labkit.testbed.ssh.parallel import together
from labkit.testbed.ssh.replies import RunAges, reply_to

PATIENCE_S: Final = 60.0
MOST_GB: Final = 16.0
"""Most GB from one host, so that no host can fill the disk here."""


def fetch(fleet: Fleet, run: str = "", *, runs: str | Path = "runs", most_gb: float = MOST_GB) -> Outcomes:
    """Copy the files of a run from the hosts to the run's folder here, RUN/hosts/HOST, whole or not at all.

    Only folders and regular files are written, each verified, and only below that folder, whatever a host sends.

    Parameters
    ----------
    fleet : Fleet
        The hosts.
    run : str
        Name of the run or of its record here; by default, and of several, the one that was written to last.
    runs : str or Path
        Folder of runs here.
    most_gb : float
        A host that has more to send is refused.

    Returns
    -------
    Outcomes
        One row per host, with `files` and `bytes` that came.

    Raises
    ------
    InputError
        If the name is none that a run can have, or every host answers and none has such a run.
    """
    try:
        run = check_name(run, "run") if run else ""
    except Refusal as error:
        raise InputError(f"{error}.") from None
    written, failed = _runs(fleet)
    run = _latest(run, written, silent=bool(failed))
    target = _home(Path(runs), run) / "hosts" if run else Path(runs)

    def one(machine: Machine) -> HostOutcome:
        if machine.name in failed or not run:
            return failed.get(machine.name, HostOutcome(machine.name, True, "no run"))
        try:
            return _fetched(fleet, machine, run, target, most_bytes=int(most_gb * 1e9))
        except HostError as error:
            return failure(machine.name, error)
        except TimeoutError:
            return HostOutcome(machine.name, False, f"nothing arrived for {PATIENCE_S:g} s", "run it again")
        except OSError as error:
            return HostOutcome(
                machine.name, False, f"{target / machine.name}: {error}", "run it again; is there room here?"
            )

    return Outcomes.of(together(one, fleet.inventory, give_up=fleet.close))


def _home(folder: Path, run: str) -> Path:
    """Return the folder of a run here: that of its record, whose name may differ from the run's name on hosts."""
    for state in folder.glob("*/testbed.json"):
        with suppress(OSError, ValueError, AttributeError):
            if json.loads(state.read_bytes()).get("run") == run:
                return state.parent
    return folder / run


def _runs(fleet: Fleet) -> tuple[dict[str, float], dict[str, HostOutcome]]:
    """Return when each run was last written to on any host, and the outcome of hosts that did not answer."""
    written: dict[str, float] = {}
    failed: dict[str, HostOutcome] = {}
    now_s = wall_s()
    for answer in fleet.run(lambda machine: [machine.python, "-c", source("pack"), machine.path("runs")]):
        reply = reply_to(answer, RunAges, program="pack")
        if isinstance(reply, HostOutcome):
            failed[answer.host] = reply
        elif odd := next((name for name in reply.runs if not NAME.fullmatch(name)), None):
            did = f"it reports a run {readable(odd)[:80]!r}, a name that no run can have; nothing of it is used"
            failed[answer.host] = HostOutcome(
                answer.host, False, did, "is that host what you think it is? -H leaves it out"
            )
        else:
            for name, moment_s in reply.runs.items():  # a clock that is ahead does not make its run the latest
                written[name] = max(min(moment_s, now_s), written.get(name, 0.0))
    return written, failed


def _latest(run: str, written: Mapping[str, float], *, silent: bool) -> str:
    """Return the run of that name, or any, that was written to last on any host, by the hosts' clocks.

    If there is none, but some hosts did not answer: the requested name.
    """
    meant = called(run, written) if run else list(written)
    if not meant and silent:
        return run  # a host that did not answer may have it
    if not meant and run:
        raise no_such(run, written)
    if not meant:
        raise InputError("no host has a run; `fab status` shows what is there.")
    return max(meant, key=lambda name: written[name])


def _fetched(fleet: Fleet, machine: Machine, run: str, target: Path, *, most_bytes: int) -> HostOutcome:
    final, beside = target / machine.name, target / f".{machine.name}.part"
    _refuse_links(target.parent, target, final, beside)
    target.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with fleet.stream(machine, [machine.python, "-c", source("pack"), machine.path("runs"), run]) as stream:
            stream.settimeout(PATIENCE_S)
            entries = Entries(HostMessages(stream), most_bytes=most_bytes)
            found = _write(entries, beside)
        if not found:
            return HostOutcome(machine.name, True, f"no run {run}", numbers={"files": 0, "bytes": 0})
        shutil.rmtree(final, ignore_errors=True)
        beside.replace(final)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sizes = entries.sizes.values()
    did = f"{len(sizes)} files, {sum(sizes) / 1e6:.2f} MB, in {final}"
    if entries.left_out:
        did += f"; {len(entries.left_out)} left out, such as {entries.left_out[0]}"
    return HostOutcome(machine.name, True, did, numbers={"files": len(sizes), "bytes": sum(sizes)})


def _refuse_links(*paths: Path) -> None:
    for path in paths:
        if path.is_symlink():
            raise FileError(f"{path} is a symbolic link; fetch writes into real folders alone. Move it away first.")


def _write(entries: Entries, place: Path) -> bool:
    """Write all entries into a new folder; return whether there was any."""
    with Below(place, new=True) as below:
        n = 0
        for n, entry in enumerate(entries, start=1):  # noqa: B007 - the last one counts
            if entry.content is None:
                below.folder(*entry.parts)
                continue
            with below.file(*entry.parts) as file:
                for part in entry.content:
                    file.write(part)
    return n > 0
