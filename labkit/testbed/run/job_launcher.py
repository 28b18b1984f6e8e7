"""The processes of one job on hosts, and the GPUs that they hold: requested before a start, released after the end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from labkit.core.errors import InputError
from labkit.elastic.forkserver.protocol import SWITCH
from labkit.elastic.protocol.sites import JobPlacement
from labkit.testbed.agent.messages import GpuAsk, Hello
from labkit.testbed.doctor import other_type
from labkit.testbed.errors import AgentError, AgentRefused, HostError
from labkit.testbed.inventory import Machine
from labkit.testbed.run.agents import AgentPool
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.job_messages import REQUEST

BUSY_S: Final = 75.0
"""Seconds to wait for GPUs that other tasks are leaving; a job that stops has 60 s to save its state."""
AGAIN_S: Final = 0.25
Asks = list[GpuAsk]
"""A number of GPUs of each device group, as the agent takes them."""
AsksOf = Callable[[str, JobPlacement], Asks]
"""From host and placement to the GPUs that a job needs there."""
UNPACK_S: Final = 120.0
UNPACK: Final = 'exec 3<"$1" && rm -f -- "$1" && exec tar -xf - <&3'
"""Unpacks an archive that is unlinked first, so that no failure leaves it behind."""
NOTHING_THERE: Final = ("unknown_run", "unknown_task", "ended", "over")
"""Kinds of refusal of an agent that has no such task, or no longer."""
ENV: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Environment of a job's process and its launchers: only workers see GPUs, each its own."""
JOB_MODULE: Final = "labkit.testbed.run.job_process"
LAUNCHER_MODULE: Final = "labkit.elastic.process.host_launcher"


class GpuClaims:
    """The GPUs of one job, by host.

    `asks`: GPUs that a placement needs on a host; none if workers compute on processors. `wanted`: whether to go on
    waiting for GPUs that other tasks hold.
    """

    def __init__(self, task: str, *, hosts: AgentPool, asks: AsksOf, wanted: Callable[[], bool] = lambda: True) -> None:
        self._task, self._hosts, self._asks, self._wanted = task, hosts, asks, wanted
        self.beside: str | None = None  # the job whose GPUs it shares
        self._held: dict[str, Asks] = {}
        self._closed = threading.Event()

    def start(self, host: str, place: JobPlacement, do: Callable[[Asks], object]) -> None:
        """Start a task of the job with the GPUs that it needs; `do` gets them, and is repeated while they are busy."""
        asks = self._asks(host, place)
        self._retry_while_busy(lambda: do(asks))
        self._held[host] = asks

    def take(self, hosts: Iterable[str], places: Sequence[JobPlacement]) -> None:
        """Hold on some hosts the most that any of some placements needs.

        Raise AgentRefused if other tasks still hold them after `BUSY_S`.
        """
        for host in hosts:
            asks = _most([self._asks(host, place) for place in places])
            if asks != self._held.get(host, []):
                self._retry_while_busy(lambda host=host, asks=asks: self._claim(host, asks))  # type: ignore[misc]
                self._held[host] = asks

    def exceed(self, place: JobPlacement) -> bool:
        """Return whether the job holds other GPUs than a placement needs."""
        return any(held != self._asks(host, place) for host, held in self._held.items())

    def give_back(self, place: JobPlacement) -> None:
        """Hold what a placement needs, and no more; a host that cannot be reached keeps it until the job ends there."""
        for host, held in list(self._held.items()):
            asks = self._asks(host, place)
            self._held[host] = asks
            if asks != held:
                with suppress(AgentError, HostError):
                    self._claim(host, asks)

    def adopt(self, hosts: Iterable[str], place: JobPlacement) -> None:
        """Take over a job that runs: its agents know what it holds."""
        self._held = {host: self._asks(host, place) for host in hosts}

    def forget(self, host: str | None = None) -> None:
        """Forget what is held on a host, or on all: the job has ended there."""
        if host is None:
            self._held.clear()
        else:
            self._held.pop(host, None)

    def close(self) -> None:
        """Stop waiting for GPUs."""
        self._closed.set()

    def _claim(self, host: str, asks: Asks) -> None:
        self._hosts.agent(host).claim(self._hosts.run, task=self._task, gpus=asks, beside=self.beside)

    def _retry_while_busy(self, do: Callable[[], object]) -> None:
        """Call a function again until the GPUs that it needs are not busy any more."""
        until = time.monotonic() + BUSY_S
        while True:
            try:
                do()
            except AgentRefused as error:
                late = time.monotonic() > until or not self._wanted()
                if error.kind != "busy" or late or self._closed.wait(AGAIN_S):
                    raise
            else:
                return


def _most(asks: Sequence[Asks]) -> Asks:
    """Return the requests that cover each of several needs.

    >>> _most([[{"n": 1, "of": [0, 1]}], [{"n": 2, "of": [0, 1]}, {"n": 1, "of": [2]}]])
    [{'n': 2, 'of': [0, 1]}, {'n': 1, 'of': [2]}]
    """
    found: dict[tuple[int, ...], int] = {}
    for ask in (ask for those in asks for ask in those):
        of = tuple(ask["of"])
        found[of] = max(found.get(of, 0), ask["n"])
    return [{"n": n, "of": list(of)} for of, n in sorted(found.items())]


def checked_gpus(machines: Iterable[Machine], hello: Callable[[str], Hello]) -> list[str]:
    """Compare the inventory with the GPUs that drivers report; return notes.

    Raise InputError if hosts have fewer GPUs than the inventory says: each host, and its number of GPUs. `machines`:
    the hosts that answer. `hello`: from a host to the Hello of its agent.
    """
    faults, notes = [], []
    for machine in machines:
        n_wanted = machine.host.real_gpus
        if not n_wanted:
            continue
        answer = hello(machine.name)
        found = sorted(answer.gpus, key=lambda gpu: gpu.index)
        if len(found) < n_wanted:
            why = f" ({answer.gpus_absent})" if answer.gpus_absent else ""
            faults.append(f"host {machine.name}: the inventory says gpus = {n_wanted}, its driver {len(found)}{why}")
        for name in dict.fromkeys(str(gpu.name) for gpu in found[:n_wanted]):
            if difference := other_type(machine.host.device_type, name):
                notes.append(f"host {machine.name}: {difference}")
        cut = [str(gpu.index) for gpu in found[:n_wanted] if gpu.mig]
        if cut:
            notes.append(f"host {machine.name}: GPU {', '.join(cut)} is cut by MIG, so it is not handed out")
    if faults:
        hint = 'correct the inventory; device_type = "cpu" lets workers compute on processor cores'
        raise InputError(f"{'; '.join(faults)} ({hint}).")
    return notes


class JobLauncher:
    """Starts and ends the processes of one job."""

    def __init__(
        self,
        task: str,
        *,
        hosts: AgentPool,
        backups: CheckpointCache,
        claims: GpuClaims,
        bring: Callable[[str], None] = lambda _home: None,  # brings what the job needs on its home host, beside labkit
        # called with what it starts from, where the newest copy of its checkpoints is damaged
        tell: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self._task, self._hosts, self._backups, self._claims = task, hosts, backups, claims
        self._bring, self._tell = bring, tell
        self.launchers: set[str] = set()  # hosts that have a launcher of the job
        self.stale: set[str] = set()  # hosts on which processes of an earlier start may still run
        self.host = ""  # the host that a process is started on, or was started on last
        self.n_cold = 0  # processes that were started on a host without a warm fork server

    def prepare(self, host: str) -> None:
        """End what an earlier start left on a host that the next process is started on."""
        self.host = host
        self.clear(host)

    def start(self, home: str, place: JobPlacement, *, request: bytes) -> None:
        """Start the job's process on its home host, after its newest checkpoint was brought there."""
        self._restore(home)
        self._bring(home)
        self._begin(home, place, module=JOB_MODULE, files={REQUEST: request})

    def launch(self, host: str, place: JobPlacement, *, archive: bytes) -> None:
        """Start a launcher with its folder, a tar archive, on another host."""
        self._begin(host, place, module=LAUNCHER_MODULE, files={"home.tar": archive})
        self.launchers.add(host)

    def clear(self, host: str) -> None:
        """End what an earlier start of the job may have left on a host."""
        if host not in self.stale:
            return
        try:
            self._hosts.agent(host).stop(self._hosts.run, task=self._task, grace_s=0.5)
        except AgentRefused as error:
            if error.kind not in NOTHING_THERE:
                raise
        self.stale.discard(host)

    def try_to_clear(self, hosts: Iterable[str]) -> None:
        """End what is left on hosts; a host that cannot be reached stays stale, and is cleared before its next use."""
        for host in sorted(hosts):
            with suppress(AgentError, HostError):
                self.clear(host)

    def _restore(self, home: str) -> None:
        """Bring the newest checkpoint to a host that has none, or an older one."""
        brought = self._backups.bring(self._hosts.fleet.inventory[home], task=self._task, tell=self._tell)
        if brought:
            folder = self._hosts.agent(home).hello.folder
            self._run_to_end(home, ["/bin/sh", "-c", UNPACK, "sh", f"{folder}/{brought}"])

    def _run_to_end(self, host: str, argv: list[str]) -> None:
        """Run a short program in the folder of the task; HostError if its exit code is not 0."""
        agent, run = self._hosts.agent(host), self._hosts.run
        since = max((listed.last_event for listed in agent.list() if listed.run == run), default=0)
        agent.start(run, task=self._task, argv=argv, lease_s=self._hosts.lease_s)
        watching = agent.watch(run, since=since)
        while True:
            event = watching.next(timeout_s=UNPACK_S)
            if event.task == self._task and event.kind == "ended":
                break
        if event.code != 0:
            raise HostError(f"host {host}: {argv[0]} {event.how or f'ended with {event.code}'}.")

    def _begin(self, host: str, place: JobPlacement, *, module: str, files: dict[str, bytes]) -> None:
        """Start a module of the installed labkit, with the GPUs that a placement needs, unless it runs already."""
        agent = self._hosts.agent(host)
        path = agent.bridge.path
        switch = {SWITCH: os.environ[SWITCH]} if SWITCH in os.environ else {}
        env = {**ENV, **switch, **({} if path is None else {"PYTHONPATH": path})}
        argv = [str(agent.bridge.python), "-m", module, "."]

        def begin(gpus: Asks) -> None:
            started = agent.start(
                self._hosts.run, task=self._task, argv=argv, env=env, files=files, lease_s=self._hosts.lease_s,
                gpus=gpus, beside=self._claims.beside,
            )  # fmt: skip
            self.n_cold += started.cold

        try:
            self._claims.start(host, place, begin)
        except AgentRefused as error:
            if error.kind != "exists":
                raise
