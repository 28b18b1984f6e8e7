"""The processes of one job on hosts: started there, and ended where an earlier start left some."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from labkit.elastic.controller.placement import JobPlacement
from labkit.elastic.forkserver.protocol import SWITCH
from labkit.testbed.agent.errors import AgentError, AgentRefused
from labkit.testbed.errors import HostError
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.gpu_claims import Asks, Claims
from labkit.testbed.run.job_request import REQUEST

UNPACK_S: Final = 120.0
UNPACK: Final = 'exec 3<"$1" && rm -f -- "$1" && exec tar -xf - <&3'
"""Unpacks an archive that is unlinked first, so that no failure leaves it behind."""

NOTHING_THERE: Final = ("unknown_run", "unknown_task", "ended", "over")
"""Kinds of refusal of an agent that has no such task, or no longer."""
ENV: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Environment of a job's process and its launchers: only workers see GPUs, each its own."""
JOB_MODULE: Final = "labkit.testbed.run.job_process"
LAUNCHER_MODULE: Final = "labkit.elastic.process.host_launcher"


class JobLauncher:
    """Starts and ends the processes of one job.

    Parameters
    ----------
    task : str
        The job, as agents know it.
    hosts : AgentPool
        Agents that start processes.
    backups : CheckpointCache
        Checkpoints on this machine.
    claims : Claims
        GPUs of the job.
    bring : callable
        Brings what the job needs on its home host, beside labkit.
    tell : callable
        Called with what it starts from, where the newest copy of its checkpoints is damaged.

    Attributes
    ----------
    launchers : set of str
        Hosts that have a launcher of the job.
    stale : set of str
        Hosts on which processes of an earlier start may still run.
    host : str
        The host that a process is started on, or was started on last.
    n_cold : int
        Processes that were started on a host without a warm fork server.
    """

    def __init__(
        self,
        task: str,
        *,
        hosts: AgentPool,
        backups: CheckpointCache,
        claims: Claims,
        bring: Callable[[str], None] = lambda _home: None,
        tell: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self._task, self._hosts, self._backups, self._claims = task, hosts, backups, claims
        self._bring, self._tell = bring, tell
        self.launchers: set[str] = set()
        self.stale: set[str] = set()
        self.host = ""
        self.n_cold = 0

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
        """Run a short program in the folder of the task.

        Raises
        ------
        HostError
            If its exit code is not 0.
        """
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
