"""A job from outside: start it, scale it, watch it, get the trained model."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np

from labkit.core.errors import InputError, LabkitError
from labkit.core.events import Cause
from labkit.elastic.arguments import (
    ANYWAY,
    EXACT,
    check_optimizer,
    check_seconds,
    check_variables,
    check_words,
    checked_counts,
    checked_folder,
)
from labkit.elastic.checkpoint.resume import check_resume, losses_before
from labkit.elastic.controller.client import ControllerClient
from labkit.elastic.controller.deaths import check_restarts
from labkit.elastic.controller.job_files import EVENTS, LEASES, LOCK, LOST_KNOWN, STATE, JobConfig, records
from labkit.elastic.controller.losses import STOP, decoded
from labkit.elastic.controller.placement import ROLES, JobPlacement, checked, of_role
from labkit.elastic.controller.replica_placement import check_standby
from labkit.elastic.errors import JobError, NotDoneError, OverError
from labkit.elastic.failure import failed
from labkit.elastic.forkserver import client as forks
from labkit.elastic.process.causes import FAILED, NO_MEMORY, of_exit, read
from labkit.elastic.process.credentials import Credentials, Secrets
from labkit.elastic.process.launchers import end_members
from labkit.elastic.process.limits import Amounts
from labkit.elastic.process.member import SPEC, Spec
from labkit.elastic.protocol.blocks import BLOCKS, MOST_BLOCKS, Vector, layout, pack, unpack
from labkit.elastic.protocol.network import NetworkConfig, NetworkMode
from labkit.elastic.protocol.program import FILE as PROGRAM
from labkit.elastic.protocol.program import Program, module_paths
from labkit.elastic.protocol.sites import Site, checked_sites, hosts_of, launcher_name
from labkit.elastic.server.block import Block
from labkit.elastic.shards import ShardService, check_batch
from labkit.elastic.transport import Lease, TransportError, new_token, private_folder

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


LEAVE_S = 60.0
"""Seconds that a job has to save its state when its user leaves it while it runs."""


class RunningError(InputError):
    """A job is still running in a folder that another is to have."""


class MemberStatus(NamedTuple):
    """A member of a job, where it sits, and what it uses; `pid` is that on its host, 0 while nobody knows.

    `cores` are those in use of late (over a second or so), `memory_gb` what is resident; None while it is not known, or
    where the host does not tell. `most_cores` and `most_gb` are what `Job.resize` gave it; None: no limit.
    """

    name: str
    role: str
    site: str
    pid: int
    joined: bool
    cores: float | None = None
    memory_gb: float | None = None
    most_cores: float | None = None
    most_gb: float | None = None


class Lost(NamedTuple):
    """A member that was lost: why (`cause` is a name of `labkit.core.Cause`), in words, and at which time of day."""

    name: str
    role: str
    cause: str
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class Status:
    """Where a job is.

    Attributes
    ----------
    phase : str
        starting, loading, training, restoring, taking_over or over.
    step : int
        Updates that are complete.
    loss : float or None
        Of the newest step that is complete.
    members : list of MemberStatus
        Who is there, or starts, and is not about to go.
    lost : list of Lost
        Who was lost of late, oldest first; the last 20 of whom this controller knows.
    """

    phase: str
    step: int
    loss: float | None
    members: list[MemberStatus]
    lost: list[Lost] = field(default_factory=list)


class Job:
    """A training job that runs in processes of its own.

    Start one with `labkit.elastic.start`, or run one to its end with `labkit.elastic.train`.
    """

    def __init__(self, folder: Path, program: Program, *, keep: bool, secrets: Secrets | None = None) -> None:
        self.folder, self._program, self._keep, self._secrets = folder, program, keep, secrets
        self._spec, self._plan = Spec.load(folder), JobConfig.load(folder)
        self._lease = Lease(self._spec.lease_s)
        self._ended, self._closing = threading.Event(), False
        self._failure, self._cause = "", Cause.UNKNOWN
        self._client = ControllerClient(folder, lease=self._lease, ended=self._ended)
        self._result: Result | None = None
        self._process = self._start()
        threading.Thread(target=self._attend, name="controller", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        forks.prepare(os.environ)  # it makes ready while the controller does
        with (self.folder / "controller.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "labkit.elastic.controller.process", str(self.folder)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # type: ignore[union-attr]
            pipe.write(b"" if self._secrets is None else self._secrets.write())
        return process

    def _attend(self) -> None:
        """Start the controller again if it was killed or failed, unless too often: training went on meanwhile."""
        deaths: list[float] = []
        try:
            while ((code := self._process.wait()) < 0 or code in (FAILED, NO_MEMORY)) and not self._closing:
                now_s = time.monotonic()
                deaths = [when for when in deaths if when > now_s - self._plan.restarts_within_s] + [now_s]
                if len(deaths) > self._plan.restarts:
                    end_members(self.folder)  # nobody will lead them
                    return
                self._process = self._start()
        finally:
            self._ended.set()

    # --- what a user does

    def scale(
        self, *, servers: int = 0, workers: int = 0, replace: Sequence[str] = (), strategy: str = "handover"
    ) -> None:
        """Add servers and workers (or remove, below 0), or replace some by name, while training goes on.

        Returns as soon as the request is taken; `events` tell how it goes.

        Raises
        ------
        InputError
            If nobody would be left, or there would be more servers than blocks; the job goes on as it was.
        """
        replaced = list(replace)
        self._client.ask("scale", servers=servers, workers=workers, replace=replaced, place=None, strategy=strategy)

    def place(self, place: Mapping[str, Sequence[int]], *, strategy: str = "handover") -> int:
        """Say how many workers and servers sit on each site: one scaling that adds, removes and moves.

        Returns as soon as the request is taken; `events` tell how it goes. If a server or the controller dies
        meanwhile, it is begun again; if a host is lost that it needs, it is dropped.

        Parameters
        ----------
        place : mapping
            (workers, servers) by name of the site; nobody sits on a site that is not named.
        strategy : str
            handover, suspend or checkpoint.

        Returns
        -------
        int
            Number of the scaling, a column of its events.

        Raises
        ------
        InputError
            If there is no such site, its host is lost, nobody would be left, or there would be more servers than
            blocks; the job goes on as it was.
        """
        seats = {site: list(numbers) for site, numbers in place.items()}
        said = self._client.ask("scale", servers=0, workers=0, replace=[], place=seats, strategy=strategy)
        return int(said["scaling"])

    def balance(self, *, strategy: str = "handover") -> int:
        """Spread the blocks over the servers anew, by the gradient bytes that come for each, while training goes on.

        Returns as soon as the request is taken. Its event `assignment` tells the part of the load that each server has
        `before` and `after`; where that is level already, nothing moves. Later scalings go by the same loads.

        Parameters
        ----------
        strategy : str
            handover or suspend.

        Returns
        -------
        int
            Number of the scaling, a column of its events.

        Raises
        ------
        InputError
            If there is no such strategy; the job goes on as it was.
        """
        return int(self._client.ask("balance", strategy=strategy)["scaling"])

    def resize(self, amounts: Mapping[str, tuple[float | None, float | None]]) -> None:
        """Give members other cores and memory while they go on: no process is started anew.

        Returns as soon as the request is taken; events `resized` tell what each has (`cores`), and what cannot be had
        on its host (`unable`). A member that replaces another one has no limits. Workers of asynchronous jobs compute
        with as many threads as they have cores; those of synchronous jobs with one, so that their bits stay the same.

        Parameters
        ----------
        amounts : mapping
            (cores, GB) by name of a member, as `status` tells it; None: no limit.

        Raises
        ------
        InputError
            If there is no such member, or an amount is not finite and > 0; the job goes on as it was.
        """
        asked = {name: asdict(Amounts(*given)) for name, given in amounts.items()}
        self._client.ask("resize", amounts={name: [one["cpus"], one["memory_gb"]] for name, one in asked.items()})

    def status(self) -> Status:
        """Return where the job is now.

        Raises
        ------
        NoAnswerError
            If its controller does not answer; the job goes on.
        """
        try:
            said = self._client.ask("status")
        except OverError:
            return self._last_status()
        loss = None if said["loss"] is None else decoded(said["loss"])
        return Status(
            said["phase"],
            said["step"],
            loss,
            [MemberStatus(*row) for row in said["members"]],
            [Lost(*row) for row in said["lost"]],
        )

    def _last_status(self) -> Status:
        events = list(self.events(follow=False))
        losses = [event for event in events if event["event"] == "loss"]
        last: dict[str, Any] = max(losses, key=lambda e: int(e["version"]), default={"version": -1, "loss": None})
        gone = [event for event in events if event["event"] == "left" and not event["expected"]]
        lost = [Lost(*(event[name] for name in Lost._fields)) for event in gone]
        return Status("over", last["version"] + 1, last["loss"], [], lost[-LOST_KNOWN:])

    def host_home(self, host: str) -> bytes:
        """Return what a host needs before `python -m labkit.elastic.process.host_launcher` starts there: a tar.

        It holds a key: bring it by SSH, into a folder that only its owner can enter. Whoever is started there gets
        keys of its own through the job's network.

        Raises
        ------
        InputError
            If no site of the job is on such a host, or it is the job's home.
        JobError
            If the job ends before its controller listens.
        """
        spec = self._spec
        home, *others = hosts_of(spec.places.values())
        if host not in others:
            told = f"host '{host}' is the job's home" if host == home else f"host '{host}' has no site of the job"
            raise InputError(f"{told}; launchers are for {', '.join(others) or 'jobs with sites on other hosts'}.")
        self._client.open()  # it has written its address before it lets anybody in
        homes = Credentials(self.folder, reach=NetworkConfig(**spec.reach), secrets=self._secrets)
        return homes.archive(launcher_name(host, spec.places.values()), host, files=(SPEC, PROGRAM))

    def stop(self, *, save: bool = False) -> None:
        """End the job before its last step; `save`: after a checkpoint, so that no step that is done is lost.

        Returns as soon as that is under way: `wait` returns the result. Another `start` in the same folder goes on
        from there. A job that is over stays as it is.
        """
        with contextlib.suppress(OverError):
            self._client.ask("stop", save=save)

    def delete(self) -> None:
        """End the job, if it still runs, and remove its folder, unless you have named it: then that is yours.

        Steps since the last checkpoint are lost, and with a folder of its own all that is not in the result.
        """
        if not self._ended.is_set():
            self._end(save=False)
        self._client.close()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def events(self, *, follow: bool = True) -> Iterator[dict[str, Any]]:
        """Yield what has happened so far, and what happens until the job is over."""
        if self._result is not None:
            yield from self._result.events
            return
        path, pause = self.folder / EVENTS, threading.Event()
        while not path.exists():
            if self._ended.is_set():
                return  # it never began, or was deleted
            pause.wait(0.02)
        with path.open() as file:
            rest = ""
            while True:
                ended = self._ended.is_set()
                rest += file.readline()
                if rest.endswith("\n"):
                    yield _event(rest)
                    rest = ""
                elif ended or not follow:
                    return
                else:
                    pause.wait(0.02)

    def wait(self, *, timeout_s: float | None = None) -> Result:
        """Wait for the end; return the result, with the model trained. Said again, it returns the same.

        To wait changes nothing: a job that is not done in time, or whose waiting is interrupted, trains on.

        Raises
        ------
        NotDoneError
            If it is not over after `timeout_s` seconds.
        JobError
            If the job failed. Its folder stays, with logs and checkpoints; the message says where.
        """
        if not self._ended.wait(timeout_s):
            told = f"the job is not done after {timeout_s:g} s, and trains on; wait again, or end it with stop()."
            raise NotDoneError(told)
        if self._result is None:
            self._result = self._outcome()
            self.delete()  # what it leaves is in the result
        return self._result

    def _outcome(self) -> Result:
        if not self._failure and not self.folder.exists():
            self._failure = f"the job was deleted, and its folder {self.folder} with it: there is no result."
        if not self._failure:
            try:
                return Result(self)
            except JobError as error:
                self._failure, self._cause = str(error), error.cause
                self._client.close()
        raise JobError(self._failure, cause=self._cause)

    def _controller_ended(self) -> Cause:
        """Return why the controller ended, which has not said how the job did."""
        return of_exit(self._process.returncode or 0)

    @property
    def pid(self) -> int:
        """Of the controller."""
        return self._process.pid

    # --- the end

    def _end(self, *, save: bool) -> None:
        """End the job, if need be by force; with `save` it has a minute to write its state."""
        with contextlib.suppress(LabkitError):
            try:
                self.stop(save=save)
                if save and not self._ended.wait(LEAVE_S):
                    self.stop()
            except KeyboardInterrupt:  # once more: at once
                self.stop()
        if not self._ended.wait(5 * self._lease.base_s):
            self._closing = True
            self._process.kill()
            end_members(self.folder)
            self._ended.wait(self._lease.base_s)

    def __enter__(self) -> Job:
        """Return the job."""
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """End the job if it still runs: no job outlives its block.

        What is done so far is saved first if the job has a folder that you have named, or if an exception ends the
        block, as when you interrupt it: then a line on stderr says where, and how to go on.
        """
        if not self._ended.is_set() and (self._keep or kind is not None):
            self._end(save=True)
        if kind is not None and self._result is None and not self._failure:
            self._tell_where()
        self.delete()

    def _tell_where(self) -> None:
        """Say where the state of a job is whose block was interrupted, and let it stay, if there is any."""
        saved = max(self._spec.checkpoints(self.folder).steps(), default=0) if self.folder.exists() else 0
        if saved:
            self._keep = True
            told = f"the job was ended; its state after step {saved} is in {self.folder}"
            print(f"{told}: start(..., folder=...) goes on from there.", file=sys.stderr)


def _event(line: str) -> dict[str, Any]:
    """Return an event as it was told; a loss is a number, NaN and infinity too."""
    event: dict[str, Any] = json.loads(line)
    if isinstance(event.get("loss"), str):
        event["loss"] = decoded(event["loss"])
    return event


class Result:
    """What a job has come to.

    Attributes
    ----------
    model : Module
        With the parameters of the last step.
    version : int
        Steps done, as far as they are saved: all of them unless the job was stopped.
    digest : str
        Of all blocks, optimizer state included: equal training has equal digests, bit by bit.
    blocks : dict
        The last state, by number of the block.
    events : list of dict
        All that happened.
    ledger : tuple of Commit
        Of asynchronous training: which samples had their effect, by whom; `labkit.elastic.shards.prove` takes it.
    """

    def __init__(self, job: Job) -> None:
        self.events = list(job.events(follow=False))
        last = self.events[-1] if self.events else {}
        spec = Spec.load(job.folder)
        if last.get("event") != "over" or last["failure"]:
            job._keep = True  # its logs tell why, its checkpoints what is left
            why = failed(job.folder, str(last.get("failure", "")), checkpoints=spec.checkpoints(job.folder))
            raise JobError(why, cause=read(last.get("cause")) if last.get("failure") else job._controller_ended())
        saved = spec.checkpoints(job.folder).newest()
        self.model: nn.Module = job._program.model
        self.version, self.digest, self.blocks = saved.step, saved.digest, saved.blocks
        began = next((e["version"] for e in self.events if e["event"] == "began"), 0)
        self._losses = losses_before(job.folder, step=began)
        self._losses.update((e["version"], e["loss"]) for e in self.events if e["event"] == "loss")
        self.ledger = () if spec.sync else tuple(ShardService.replay(records(job.folder)).ledger)
        vector = np.concatenate([saved.blocks[number].params for number in sorted(saved.blocks)])
        unpack(vector, self.model)

    @property
    def losses(self) -> list[float]:
        """Mean loss of each step from `losses_from` on: of all steps, also those of jobs before it in its folder."""
        first = self.losses_from
        return [self._losses[step] for step in sorted(self._losses) if step >= first]

    @property
    def losses_from(self) -> int:
        """Step of the first of `losses`: 0, unless what a job before this one told is not in the folder any more."""
        return max((step for step in self._losses if step - 1 not in self._losses), default=0)

    @property
    def steps(self) -> pd.DataFrame:
        """What each worker did in each step, in seconds: `labkit.elastic.measure.steps`."""
        from labkit.elastic import measure

        return measure.steps(self.events)

    @property
    def scalings(self) -> pd.DataFrame:
        """What each scaling took and cost, in DL2's four steps: `labkit.elastic.measure.scalings`."""
        from labkit.elastic import measure

        return measure.scalings(self.events)

    @property
    def faults(self) -> pd.DataFrame:
        """What each death of a process cost: `labkit.elastic.measure.faults`."""
        from labkit.elastic import measure

        return measure.faults(self.events)


def start(
    model: nn.Module,
    data: Any,
    loss: Callable[[nn.Module, Any], Any],
    *,
    steps: int,
    batch: int = 64,
    workers: int = 2,
    servers: int = 2,
    shards: int = 8,
    optimizer: str = "sgd",
    sync: bool = True,
    seed: int = 0,
    save_every: int = 0,
    standby: bool = False,
    lease_s: float = 3.0,
    start_s: float = 300.0,
    patience_s: float = 300.0,
    restarts: int = 10,
    restarts_within_s: float = 600.0,
    devices: Sequence[str] = (),
    folder: Path | str | None = None,
    resume: str = EXACT,
    on_nan: str = STOP,
    network: str = "local",
    hosts: Sequence[str] = (),
    ports: Sequence[int] | None = None,
    sites: Sequence[Site] = (),
    place: Mapping[str, Sequence[int]] | None = None,
    loads_every_s: float = 0.0,
    measure_every_s: float = 0.0,
    partition: str = BLOCKS,
    **options: Any,
) -> Job:
    """Start a job and return at once.

    Parameters
    ----------
    model : Module
        What is trained: its parameters that need gradients, all of them float32.
    data : object
        `len(data)` samples; `data.fetch(indices)` returns a batch, or `data[i]` a sample.
    loss : callable
        (model, batch) to a scalar tensor, the mean over the batch.
    steps : int
        Updates of the parameters, of all workers together.
    batch : int
        Samples of an update, whatever the number of workers.
    workers, servers : int
        How many there are at the beginning.
    shards : int
        V: a batch of synchronous training is cut into so many logical shards, whose gradients are summed in a fixed
        order. A divisor of `batch`.
    optimizer : str
        sgd, momentum or adam; its options (lr, ...) by name, see `labkit.elastic.server.optimizers`.
    sync : bool
        Whether all workers make an update together, or each its own with samples that it leases.
    seed : int
        Of the order of samples and of what the model draws.
    save_every : int
        Updates between two checkpoints; 0: only the last state is saved.
    standby : bool
        Whether every block is followed by a second server, which takes the place of a killed one: no step is lost.
        Takes twice the memory on servers and twice the pushes; synchronous training only.
    lease_s : float
        Seconds after which who does not answer counts as gone; all other timeouts but two derive from it.
    start_s : float
        Seconds that a process may take to start. Then it is given up: a request to scale is dropped, a replacement
        replaced; with the first processes of a job, the job ends and says who did not come.
    patience_s : float
        Seconds that a worker may take for the gradient of one logical shard (of one minibatch if `sync` is False). Then
        another one takes its place; the second time at the same shard the job ends and says where.
    restarts, restarts_within_s : int, float
        The job is given up when more than so many processes died within so many seconds, and training did not get
        further meanwhile (docs/elastic.md, When a job is given up); so is a controller that is killed as often.
    devices : sequence of str
        Where workers compute: worker i on the (i modulo their number)-th, "cpu" or "cuda:0".
    folder : Path, optional
        Keeps events, logs and checkpoints, and training goes on from the newest good checkpoint that is there. Without
        one, a folder in the system's place for temporary ones, which is removed at the end unless the job failed.
    resume : str
        "exact": refuse to go on from a checkpoint with another seed, batch, number of shards or dataset, so that
        training ends with the bits of one that was never interrupted; "anyway": go on with other samples (synchronous
        training only), and say what differs in an event `differs`.
    on_nan : str
        "stop": a loss that is NaN or infinite ends the job before its gradient goes anywhere, and no state with such
        numbers is saved: the newest checkpoint is from before. "continue": it is recorded, and training goes on.
    network, hosts, ports
        Over what processes talk: "local", "tls" or "tcp", at which addresses (docs/elastic.md, Between hosts).
    sites : sequence of Site
        Where members may sit (docs/elastic.md, Over several hosts); the host of the first one is this machine.
    place : mapping, optional
        (workers, servers) by name of the site, instead of `workers` and `servers`; without it they sit on the first.
    loads_every_s : float
        Each server tells this often, in an event `served`, how many bytes of gradients have come since; 0: never.
    measure_every_s : float
        Events `used` tell this often the cores that each process used since, and the GB that it has; 0: never. A status
        tells it anyway.
    partition : str
        What servers have at the beginning: "blocks", even by their bytes; or "tensor", whole parameters in turn, as
        TensorFlow places them: then one server may have most of the load, until `Job.balance`.

    Raises
    ------
    InputError
        If any of it makes no sense, or a job is running in the folder; nothing has been started then.
    """
    steps, batch, workers, servers, shards, seed, save_every = checked_counts(
        steps=steps, batch=batch, workers=workers, servers=servers, shards=shards, seed=seed, save_every=save_every
    )
    if save_every < 0:
        raise InputError(
            f"save_every is {save_every}; expected steps between two checkpoints, or 0 for the last state alone."
        )
    check_seconds(
        lease_s=lease_s, start_s=start_s, patience_s=patience_s, loads_every_s=loads_every_s,
        measure_every_s=measure_every_s,
    )  # fmt: skip
    check_words(on_nan=on_nan, resume=resume, partition=partition)
    check_variables()
    check_optimizer(optimizer, options, arguments=signature(start).parameters)
    folder = checked_folder(folder)
    places = checked_sites(sites, network=network, hosts=hosts, devices=devices)
    addresses = hosts or [site.address for site in places if site.address]
    reach = NetworkConfig.checked(network, addresses, ports, job=f"job-{new_token().hex()[:12]}")
    seats = _checked_seats(places, place, servers=servers, workers=workers)
    servers, workers = (sum(of_role(seats, role).values()) for role in ROLES) if seats else (servers, workers)
    program = Program(model, data, loss)
    program.check()
    check_restarts(restarts, restarts_within_s)
    check_batch(len(data), batch=batch, n_shards=shards if sync else 1)
    if steps < 1:
        raise InputError(f"a job of {steps} steps; expected at least one.")
    cut = layout(model)
    if cut.n_blocks > MOST_BLOCKS:
        raise InputError(
            f"{cut.n} numbers in {cut.n_blocks} blocks of parameters; expected at most {MOST_BLOCKS} blocks: "
            "train fewer parameters (requires_grad_(False))."
        )
    if servers > cut.n_blocks:
        raise InputError(f"{servers} servers for {cut.n_blocks} blocks of parameters; expected at most one per block.")
    if servers < 1 or workers < 1:
        raise InputError(f"a job with {servers} servers and {workers} workers; expected at least one of each.")
    if standby:
        check_standby(servers=servers, sync=sync)
    _check_free(reach, places, seats, servers=servers)
    spec = Spec(
        params=[(p.name, p.first, list(p.shape)) for p in cut.params], extents=list(cut.extents), optimizer=optimizer,
        options=options, batch=batch, n_shards=shards, n_steps=steps, seed=seed, lease_s=lease_s,
        start_s=start_s, patience_s=patience_s,
        devices=tuple(devices), sync=sync, n_samples=len(data), reach=asdict(reach),
        sites=[asdict(site) for site in places], on_nan=on_nan, paths=module_paths(),
        loads_every_s=float(loads_every_s), measure_every_s=float(measure_every_s),
        partition=partition,
    )  # fmt: skip
    if network != NetworkMode.LOCAL:
        spec = replace(spec, scheme=network)
    plan = JobConfig(
        servers=servers, workers=workers, save_every=save_every, standby=standby, parent=os.getpid(),
        restarts=restarts, restarts_within_s=restarts_within_s,
        place={site: list(numbers) for site, numbers in seats.items()} or None,
    )  # fmt: skip
    secrets = Secrets.of(reach)
    with _home(folder) as home:
        _furnish(home, program, spec, plan, anyway=resume == ANYWAY)
        Credentials(home, reach=reach, secrets=secrets).close()  # what a run before this one has left in this folder
        return Job(home, program, keep=folder is not None, secrets=secrets)


@contextlib.contextmanager
def _home(folder: Path | None) -> Iterator[Path]:
    """Make the folder of a job; where it does not come to a job, nothing of it is left."""
    made = folder is None or not folder.exists()
    try:
        home = private_folder(Path(tempfile.mkdtemp(prefix="labkit-job-")) if folder is None else folder)
    except TransportError:
        raise
    except OSError as error:
        raise InputError(f"folder {folder or tempfile.gettempdir()} cannot be made: {error.strerror}.") from None
    try:
        yield home
    except BaseException:
        if made:
            shutil.rmtree(home, ignore_errors=True)
        raise


def _furnish(home: Path, program: Program, spec: Spec, plan: JobConfig, *, anyway: bool) -> None:
    """Write what a job needs into its folder; a job that is refused leaves it as it was."""
    with (home / LOCK).open("a") as lock:
        _alone(lock, home)
        differs = check_resume(home, spec, anyway=anyway)
        program.save(home)
        _set_aside(home)
    spec.save(home)
    _save_first(spec, home, pack(program.model))
    replace(plan, differs=differs).save(home)


def _checked_seats(
    sites: Sequence[Site], place: Mapping[str, Sequence[int]] | None, *, servers: int, workers: int
) -> JobPlacement:
    """Return how many sit where at the beginning; nothing for a job without sites."""
    if not sites:
        if place is not None:
            raise InputError(f"place {dict(place)} of a job without sites; name its sites, or leave it out.")
        return {}
    if place is None:
        return {sites[0].name: (workers, servers)}
    return checked(place, sites={site.name: site.host for site in sites}, lost=())


def _check_free(reach: NetworkConfig, sites: Sequence[Site], seats: JobPlacement, *, servers: int) -> None:
    """Raise AddressError unless this machine has the addresses and ports that it is to have."""
    if not sites:
        reach.check_free(servers=servers)
        return
    at: dict[str, int] = {}
    for site in sites:
        if site.host == sites[0].host:
            at[site.address] = at.get(site.address, 0) + seats.get(site.name, (0, 0))[1]
    for address, n in at.items():
        replace(reach, hosts=(address,)).check_free(servers=n, controller=address == sites[0].address)


def _alone(lock: TextIO, folder: Path) -> None:
    """Raise RunningError if a job is still running in a folder."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        told = f"a job is running in {folder}; wait until it is over, or give another folder."
        raise RunningError(told) from None


def _set_aside(folder: Path) -> None:
    """Set aside what a run before this one has left of itself; its checkpoints stay."""
    (folder / STATE).unlink(missing_ok=True)
    (folder / LEASES).unlink(missing_ok=True)
    if (folder / EVENTS).exists():
        n = sum(1 for _ in folder.glob(f"*-{EVENTS}"))
        (folder / EVENTS).rename(folder / f"{n}-{EVENTS}")


def _save_first(spec: Spec, folder: Path, vector: Vector) -> None:
    """Write the checkpoint with which training begins, unless there is one to go on from."""
    checkpoints = spec.checkpoints(folder)
    if checkpoints.steps() == [0]:  # of a job that has not trained: this one begins with what it was given
        checkpoints.set_aside(0)
    if checkpoints.steps():
        return
    blocks = [
        Block(number=number, params=part, state=checkpoints.optimizer.init(len(part)))
        for number, part in enumerate(spec.layout.blocks(vector))
    ]
    checkpoints.save(0, {"launcher": blocks})


def train(model: nn.Module, data: Any, loss: Callable[[nn.Module, Any], Any], **options: Any) -> Result:
    """Train a model on parameter servers and workers in processes of their own; return when it is done.

    See `start` for the parameters. If you interrupt it, the job ends: what is done is saved, and a line on stderr says
    where and how to go on. Interrupted once more, it ends at once.

    Raises
    ------
    InputError
        If a parameter makes no sense.
    JobError
        If the job fails.
    """
    with start(model, data, loss, **options) as job:
        return job.wait()
