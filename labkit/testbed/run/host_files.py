"""What a run leaves on its hosts: the logs of its tasks, followed or read, and its folder, copied without keys."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from labkit.core.below import Below
from labkit.core.errors import InputError
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.messages import NAME, ListedRun, Refusal, check_name, wall_s
from labkit.testbed.errors import AgentError, AgentGone, AgentRefused, FileError, HostError
from labkit.testbed.inventory import Machine
from labkit.testbed.onhost import source
from labkit.testbed.run.agents import called, each, unknown_run
from labkit.testbed.ssh.fleet import Fleet, together
from labkit.testbed.ssh.host_messages import Entries, HostMessages, RunAges, reply_to
from labkit.testbed.ssh.outcomes import HostOutcome, Outcomes, failure, readable

LOG = "log"
TAIL_BYTES = 1 << 20
OnLine = Callable[[str, str], None]
PATIENCE_S: Final = 60.0
MOST_GB: Final = 16.0
"""Most GB from one host, so that no host can fill the disk here."""


def logs(
    fleet: Fleet,
    *,
    on_line: OnLine,
    run: str = "",
    task: str = "",
    lines: int = 20,
    follow: bool = False,
) -> Outcomes:
    """Pass on lines that tasks have written, and lines that they write until they have ended.

    Raise InputError if every host answers, and none has such a run.

    Parameters
    ----------
    on_line : callable
        Takes (host, line); a line begins with the name of its task.
    run : str
        Name of the run; by default the latest of each host.
    task : str
        Name of the task; by default all.
    lines : int
        Number of last lines of each task to begin with.
    follow : bool
        Go on until no task of the run runs any more.

    Returns
    -------
    Outcomes
        One row per host: how each task ended, or that it runs.
    """
    known: set[str] = set()

    def one(machine: Machine, agent: Agent) -> HostOutcome:
        there = agent.list()
        known.update(listed.run for listed in there)
        found = _run_of(there, run)
        if found is None:
            return HostOutcome(machine.name, True, f"no run {run}" if run else "no run")
        reader = _Reader(agent, found.run, lambda line: on_line(machine.name, line), lines=lines)
        wanted = [name for name in found.tasks if task in ("", name)]
        if follow:
            reader.follow(wanted, since=found.last_event, task=task)
        else:
            for name in wanted:
                reader.tail(name)
        return HostOutcome(machine.name, True, _ends(agent, found.run, task))

    outcomes = each(fleet, one, start=False, renew=False)
    if run and outcomes.ok and not called(run, known):
        raise unknown_run(run, known)
    return outcomes


def _run_of(there: Sequence[ListedRun], run: str) -> ListedRun | None:
    """Return the run of that name on a host; of several the one that is not over, else the one that began last."""
    meant = called(run, (listed.run for listed in there))
    found = [listed for listed in there if not run or listed.run in meant]
    return max(found, key=lambda listed: (not listed.over, _began_s(listed)), default=None)


def _began_s(listed: ListedRun) -> float:
    return max((task.started_s or 0.0 for task in listed.tasks.values()), default=0.0)


def _ends(agent: Agent, run: str, task: str) -> str:
    """Return how each task of a run ended, or that it runs."""
    (found,) = agent.list(run)
    ends = [f"{name} {each.how or each.phase}" for name, each in found.tasks.items() if task in ("", name)]
    return f"{run}: {', '.join(ends) or 'no task'}"


class _Reader:
    def __init__(self, agent: Agent, run: str, on_line: Callable[[str], None], *, lines: int) -> None:
        self._agent, self._run, self._on_line, self._lines = agent, run, on_line, lines
        self._threads: list[threading.Thread] = []

    def tail(self, task: str, *, whole: bool = False) -> int:
        """Pass on the last lines of a task; return the offset behind them. `whole`: complete lines only."""
        try:
            size = self._agent.read(self._run, task=task, file=LOG, n_bytes=0).size
            first = max(0, size - TAIL_BYTES)
            piece = self._agent.read(self._run, task=task, file=LOG, offset=first, n_bytes=size - first)
        except AgentRefused as error:
            if error.kind != "no_file":
                raise
            return 0
        rest = piece.data.rpartition(b"\n")[2] if whole else b""
        last = piece.data.removesuffix(rest).splitlines()[-self._lines :] if self._lines else []
        for line in last:
            self._on_line(f"{task}: {line.decode(errors='replace')}")
        return piece.offset + len(piece.data) - len(rest)

    def follow(self, tasks: list[str], *, since: int, task: str) -> None:
        """Pass on lines of tasks, also of tasks that start meanwhile, until none of them runs."""
        for name in tasks:
            self._follow(name)
        with self._agent.watch(self._run, since=since) as events:
            waker = threading.Thread(target=self._wait, args=(events.close,), daemon=True)
            waker.start()
            for event in events:
                if event.kind == "started" and event.task and task in ("", event.task):
                    self._follow(event.task)
        waker.join()

    def _wait(self, done: Callable[[], None]) -> None:
        """Wait until all followed tasks have ended, then stop waiting for new ones."""
        for thread in self._threads:  # new tasks are appended meanwhile
            thread.join()
        done()

    def _follow(self, task: str) -> None:
        thread = threading.Thread(target=self._carry, args=(task, self.tail(task, whole=True)), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _carry(self, task: str, offset: int) -> None:
        try:
            for line in self._agent.follow(self._run, task=task, file=LOG, offset=offset):
                self._on_line(f"{task}: {line}")
        except AgentGone:
            return  # the stream of events ends too, and reports it
        except AgentError as error:
            self._on_line(f"{task}: {error}")


def fetch(fleet: Fleet, run: str = "", *, runs: str | Path = "runs", most_gb: float = MOST_GB) -> Outcomes:
    """Copy the files of a run from the hosts to the run's folder here, RUN/hosts/HOST, whole or not at all.

    Only folders and regular files are written, each verified, and only below that folder, whatever a host sends. Raise
    InputError if the name is none that a run can have, or every host answers and none has such a run.

    Parameters
    ----------
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
        raise unknown_run(run, written)
    if not meant:
        raise InputError("no host has a run; `fab status` shows what is there.")
    return max(meant, key=lambda name: written[name])


def _fetched(fleet: Fleet, machine: Machine, run: str, target: Path, *, most_bytes: int) -> HostOutcome:
    final, partial = target / machine.name, target / f".{machine.name}.part"
    _refuse_links(target.parent, target, final, partial)
    target.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with fleet.stream(machine, [machine.python, "-c", source("pack"), machine.path("runs"), run]) as stream:
            stream.settimeout(PATIENCE_S)
            entries = Entries(HostMessages(stream), most_bytes=most_bytes)
            found = _write(entries, partial)
        if not found:
            return HostOutcome(machine.name, True, f"no run {run}", numbers={"files": 0, "bytes": 0})
        shutil.rmtree(final, ignore_errors=True)
        partial.replace(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
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
