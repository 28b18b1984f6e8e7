"""A testbed in use for running or measuring jobs: connections, agents, checkpoints and jobs.

A run's only host may be this machine: its agent is reached through a pipe, and nothing is deployed. All else is as on
other hosts: the agent keeps the run without a client, and a later process attaches to it.
"""

from __future__ import annotations

import io
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from labkit.core.errors import InputError, LabkitError
from labkit.core.files import refuse_closed
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS
from labkit.elastic.protocol.sites import JobPlacement
from labkit.system.proc import memory_bytes
from labkit.testbed.agent.bridge import search_path
from labkit.testbed.inventory import Inventory, Machine
from labkit.testbed.run.agents import AgentPool, Changed, OnReading, RunFence
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.job_events import JobEvent
from labkit.testbed.run.job_launcher import checked_gpus
from labkit.testbed.run.job_messages import JobRequest
from labkit.testbed.run.own_scripts import STAGED, Staging
from labkit.testbed.run.remote_job import OnUpdate, RemoteJob
from labkit.testbed.run.training import TrainingTable, gpus_of, sites_of
from labkit.testbed.ssh.fleet import Command, Fleet
from labkit.testbed.ssh.outcomes import Answers, HostAnswer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

NAME: Final = "here"
"""Name of this machine in events."""
AGENT: Final = "agent"
LEFT_CORE: Final = 1e-9
HOST: Final = """# This machine, for labkit attach.
[ssh]
config = "none"

[[hosts]]
name = "{name}"
gpus = 0
cpus = {cpus!r}
memory_gb = {memory_gb!r}
device_type = "cpu"
ssh = {{ local = true, folder = {folder} }}
"""
SETTLING_S: Final = 10.0
"""Seconds that the end of a run waits for a task that is being started."""


def local_inventory(folder: Path, *, cores: float | None = None, memory_gb: float | None = None) -> Inventory:
    """Return an inventory of this machine alone, and write its file for `attach` into a folder.

    Raise InputError if the machine has less, or nothing can be written there. `folder`: folder of the file, and of the
    agent. `cores` and `memory_gb`: capacity to share; by default what this process may use.
    """
    import json

    there = len(os.sched_getaffinity(0))
    n = float(there) if cores is None else cores
    if not 0 < n <= there + LEFT_CORE:
        raise InputError(f"{n:g} cores are to be shared; expected more than 0 and at most the {there} of this machine.")
    refuse_closed(folder)
    folder.mkdir(parents=True, exist_ok=True)
    memory = memory_bytes() / 1e9 if memory_gb is None else memory_gb
    agent = json.dumps(str(folder.absolute() / AGENT))
    path = folder / f"{n:g}-{'core' if n == 1 else 'cores'}.toml"
    path.write_text(HOST.format(name=NAME, cpus=float(n), memory_gb=round(memory, 3), folder=agent))
    return Inventory.read(path)


class LocalFleet(Fleet):
    """A `Fleet` of this machine alone: programs are started, and files copied.

    `inventory`: with one machine that has `local = true`.
    """

    here: ClassVar[bool] = True

    def __init__(self, inventory: Inventory) -> None:
        if len(inventory) != 1:
            raise InputError(
                f"inventory {inventory.path}: {len(inventory)} hosts, one of them with local = true; expected it alone."
            )
        self.inventory, self.connect_timeout_s = inventory, 0.0

    def connect(self, *, only: Iterable[str] | None = None) -> Answers:  # noqa: ARG002
        """Return a row: this machine can always be reached."""
        return Answers((HostAnswer(self._machine.name, exited=0),))

    @property
    def _machine(self) -> Machine:
        return self.inventory.machines[0]

    def stream(self, machine: Machine | str, argv: Command) -> Any:  # noqa: ARG002
        """Start a program, and return a stream of its input and output."""
        return LocalStream(argv)

    def run(self, argv: Any, *, timeout_s: float = 60.0, **_: Any) -> Answers:
        """Run a command."""
        done = subprocess.run(list(argv), capture_output=True, text=True, timeout=timeout_s, check=False)
        return Answers((HostAnswer(self._machine.name, done.returncode, done.stdout, done.stderr),))

    def put(self, source: str | Path | bytes, target: str, **_: Any) -> Answers:
        """Copy a file to a path below the machine's folder, whole or not at all."""
        path = Path(self._machine.path(target))
        partial = path.with_name(f".{path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            partial.write_bytes(source)
        else:
            shutil.copyfile(source, partial)
        partial.replace(path)
        return Answers((HostAnswer(self._machine.name, exited=0),))

    def close(self) -> None:
        """End the agent, unless it has a run that is not over."""
        from labkit.testbed.run.agents import agent_of

        with suppress(LabkitError, OSError), agent_of(self, self._machine, start=False, renew=False) as agent:
            agent.shutdown()


class LocalStream(io.RawIOBase):
    """Input and output of a program of this machine, the counterpart of `labkit.testbed.ssh.command.RemoteStream`.

    Ctrl-C in the terminal does not reach it. By default it has the environment of this process, with this labkit in
    PYTHONPATH.
    """

    def __init__(self, argv: Command, *, env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        if env is None:
            path = search_path()
            env = os.environ if path is None else {**os.environ, "PYTHONPATH": path}
        words = ["/bin/sh", "-c", argv] if isinstance(argv, str) else list(argv)
        self._until_s: float | None = None
        self._reading = threading.Lock()
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env, cwd="/", start_new_session=True
        )

    @property
    def exited(self) -> int | None:
        """Exit code of the program; None while it runs."""
        return self.process.poll()

    def settimeout(self, seconds: float | None) -> None:
        """Set the seconds after which `read` raises TimeoutError."""
        self._until_s = seconds

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Wait for bytes and put them into a buffer; 0: the program has ended its output."""
        view = memoryview(buffer).cast("B")
        with self._reading:
            out = self.process.stdout
            if out is None or out.closed:
                return 0
            if not select.select([out], [], [], self._until_s)[0]:
                raise TimeoutError(f"nothing arrived for {self._until_s} s")
            data = os.read(out.fileno(), len(view))
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any, /) -> int:
        """Send all bytes to the program; BrokenPipeError if it has closed its input."""
        assert self.process.stdin is not None
        left = memoryview(data).cast("B")
        n = len(left)
        while left:
            left = left[os.write(self.process.stdin.fileno(), left) :]
        return n

    def close(self) -> None:
        """Close the program's input, and kill it two seconds later unless it has ended."""
        if self.closed:
            return
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with self._reading:  # a reader has come to the end by now
            self.process.stdout.close()
        super().close()


class LocalBridge(LocalStream):
    """A stream to the agent of a folder on this machine, without SSH.

    `start`: start an agent if there is none. `env`: environment of the bridge, and of an agent that it starts; this
    process' own, if not given.
    """

    def __init__(self, folder: Path | str, *, start: bool = True, env: Mapping[str, str] | None = None) -> None:
        place = str(Path(folder).expanduser().absolute())
        more = () if start else ("--no-start",)
        super().__init__([sys.executable, "-m", "labkit.testbed.agent.bridge", place, *more], env=env)


class TestbedSession:
    """All hosts of an inventory, ready for the jobs of a run.

    Raise InputError if a job cannot train, or a host cannot be used or has fewer GPUs than the inventory says; nothing
    runs, and nothing is connected then.

    Attributes
    ----------
    notes : list of str
        Remarks on the hosts, in sentences.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        jobs: Jobs,
        training: TrainingTable,
        run: str,
        folder: Path,  # folder of checkpoints here
        lease_s: float,
        changed: Changed = lambda _host, _up, _why: None,
        some: bool = False,  # start with the hosts that can be reached
        fence: RunFence | None = None,  # the right to drive the run, where several processes could
        on_reading: OnReading = lambda _host, _reading: None,
    ) -> None:
        training.check(jobs)
        self.inventory, self.cluster, self.jobs, self.training = inventory, inventory.cluster(), jobs, training
        self.fleet = LocalFleet(inventory) if any(machine.local for machine in inventory) else Fleet(inventory)
        self.hosts = AgentPool(
            self.fleet, run=run, changed=changed, lease_s=lease_s, fence=fence, on_reading=on_reading
        )
        self.backups = CheckpointCache(self.fleet, folder, run=run)
        self._staging = Staging(self.fleet, folder.parent / STAGED)
        self._deployments: list[RemoteJob] = []
        try:
            self.hosts.get_ready(some=some)
            there = [machine for machine in inventory if machine.name not in self.hosts.absent]
            self.notes = checked_gpus(there, lambda host: self.hosts.agent(host).hello)
        except BaseException:
            self.close(end=False)
            raise
        self.hosts.watch()

    def deployment(
        self, number: int, *, on_update: OnUpdate, on_event: Callable[[JobEvent], None] = lambda _: None
    ) -> RemoteJob:
        """Return a job, not started yet; `on_update` and `on_event` are those of `RemoteJob`."""
        per_worker = float(self.jobs.worker_demand[number, GPUS])
        all_sites = sites_of(self.inventory, self.cluster, home="", on_gpus=per_worker > 0)

        def request(home: str, place: JobPlacement) -> JobRequest:
            sites = sites_of(self.inventory, self.cluster, home=home, on_gpus=per_worker > 0)
            return self.training.request(self.jobs, number, sites=sites, place=place)

        job = RemoteJob(
            number, hosts=self.hosts, backups=self.backups, bring=lambda home: self._bring(number, home),
            request=request, on_update=on_update, on_event=on_event,
            n_steps=self.training.n_steps(self.jobs, number), strategy=self.training.strategy,
            gpus=lambda host, place: gpus_of(all_sites, place, host=host, per_worker=per_worker),
        )  # fmt: skip
        self._deployments.append(job)
        return job

    def _bring(self, number: int, home: str) -> None:
        """Bring code and data of a job's own script to its home host, if it has one and they are not there."""
        for digest in self.training.contents(self.jobs, number):
            self._staging.bring(home, digest, below=self.hosts.agent(home).hello.folder)

    def close(self, *, end: bool = True) -> None:
        """Close all connections; with `end`, end all processes of this run on the hosts first."""
        for deployment in self._deployments:
            deployment.close()
        self.hosts.leave()
        if end:
            self._end()
        self.hosts.close()
        self.fleet.close()
        for deployment in self._deployments:
            deployment.join()

    def _end(self) -> None:
        """End the run on all hosts; twice if a task was being started: its host may not have known the run before."""
        busy = [deployment for deployment in self._deployments if deployment.busy]
        self.hosts.end(self.hosts.run)
        if busy:
            until_s = time.monotonic() + SETTLING_S
            for deployment in busy:
                deployment.join(max(until_s - time.monotonic(), 0.0))
            self.hosts.end(self.hosts.run)
