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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.blocks import layout, pack, unpack
from labkit.elastic.control import EVENTS, LEASES, LOCK, STATE, Plan, records
from labkit.elastic.deaths import check_restarts
from labkit.elastic.errors import JobError, NotDoneError, OverError
from labkit.elastic.following import check_standby
from labkit.elastic.homes import Homes, Secrets
from labkit.elastic.launch import end_members
from labkit.elastic.line import Line
from labkit.elastic.member import SPEC, Spec
from labkit.elastic.network import Network, Reach
from labkit.elastic.places import ROLES, Place, checked, of_role
from labkit.elastic.program import FILE as PROGRAM
from labkit.elastic.program import Program
from labkit.elastic.shards import ShardService, check_batch
from labkit.elastic.sites import Site, checked_sites, hosts_of, launcher_name
from labkit.elastic.store import Block, Vector
from labkit.elastic.transport import Lease, new_token, private_folder

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from labkit.elastic.checkpoint import Checkpoint


LEAVE_S = 60.0
"""Seconds that a job has to save its state when its user leaves it while it runs."""


class RunningError(InputError):
    """A job is still running in a folder that another is to have."""


class Seat(NamedTuple):
    """A member of a job and where it sits; `pid` is that on its host, 0 while nobody knows."""

    name: str
    role: str
    site: str
    pid: int
    joined: bool


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
    members : list of Seat
        Who is there, or starts, and is not about to go.
    """

    phase: str
    step: int
    loss: float | None
    members: list[Seat]


class Job:
    """A training job that runs in processes of its own.

    Start one with `labkit.elastic.start`, or run one to its end with `labkit.elastic.train`.
    """

    def __init__(self, folder: Path, program: Program, *, keep: bool, secrets: Secrets | None = None) -> None:
        self.folder, self._program, self._keep, self._secrets = folder, program, keep, secrets
        self._spec, self._plan = Spec.load(folder), Plan.load(folder)
        self._lease = Lease(self._spec.lease_s)
        self._ended, self._closing, self._failure = threading.Event(), False, ""
        self._line = Line(folder, lease=self._lease, ended=self._ended)
        self._result: Result | None = None
        self._process = self._start()
        threading.Thread(target=self._attend, name="controller", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "controller.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "labkit.elastic.control", str(self.folder)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # type: ignore[union-attr]
            pipe.write(b"" if self._secrets is None else self._secrets.write())
        return process

    def _attend(self) -> None:
        """Start the controller again if it was killed, unless that happens too often: training went on meanwhile."""
        deaths: list[float] = []
        try:
            while self._process.wait() < 0 and not self._closing:
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
        self._line.ask("scale", servers=servers, workers=workers, replace=replaced, place=None, strategy=strategy)

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
        said = self._line.ask("scale", servers=0, workers=0, replace=[], place=seats, strategy=strategy)
        return int(said["scaling"])

    def status(self) -> Status:
        """Return where the job is now.

        Raises
        ------
        NoAnswerError
            If its controller does not answer; the job goes on.
        """
        try:
            said = self._line.ask("status")
        except OverError:
            return self._last_status()
        return Status(said["phase"], said["step"], said["loss"], [Seat(*row) for row in said["members"]])

    def _last_status(self) -> Status:
        losses = [event for event in self.events(follow=False) if event["event"] == "loss"]
        last = max(losses, key=lambda event: int(event["version"]), default=None)
        return Status("over", 0, None, []) if last is None else Status("over", last["version"] + 1, last["loss"], [])

    def host_home(self, host: str) -> bytes:
        """Return what is to be brought to a host before `python -m labkit.elastic.host` is started there: a tar.

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
        self._line.open()  # it has written its address before it lets anybody in
        homes = Homes(self.folder, reach=Reach(**spec.reach), secrets=self._secrets)
        return homes.archive(launcher_name(host, spec.places.values()), host, files=(SPEC, PROGRAM))

    def stop(self, *, save: bool = False) -> None:
        """End the job before its last step; `save`: after a checkpoint, so that no step that is done is lost.

        Returns as soon as that is under way: `wait` returns the result. Another `start` in the same folder goes on
        from there. A job that is over stays as it is.
        """
        with contextlib.suppress(OverError):
            self._line.ask("stop", save=save)

    def delete(self) -> None:
        """End the job, if it still runs, and remove its folder, unless you have named it: then that is yours.

        Steps since the last checkpoint are lost, and with a folder of its own all that is not in the result.
        """
        if not self._ended.is_set():
            self._end(save=False)
        self._line.close()
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
                    yield json.loads(rest)
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
            If the job failed. Its folder stays if it holds a checkpoint to go on from; the message says where.
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
                self._failure = self._with_folder(str(error))
        raise JobError(self._failure)

    @property
    def pid(self) -> int:
        """Of the controller."""
        return self._process.pid

    # --- the end

    def _with_folder(self, why: str) -> str:
        """Return why the job failed, and where it can go on; a folder of its own without a checkpoint is removed."""
        saved = max(self._spec.checkpoints(self.folder).steps(), default=0)
        if saved:
            self._keep = True
            there = f"Checkpoints are in {self.folder}: start(..., folder=...) goes on from step {saved}."
            return f"{why.rstrip('.')}. {there}"
        self.delete()
        return why

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
        if last.get("event") != "over" or last["failure"]:
            log = (job.folder / "controller.log").read_text()[-2000:]
            raise JobError(str(last.get("failure") or f"the controller died: {log.strip() or 'it left no message'}"))
        spec = Spec.load(job.folder)
        saved = spec.checkpoints(job.folder).newest()
        self.model: nn.Module = job._program.model
        self.version, self.digest, self.blocks = saved.step, saved.digest, saved.blocks
        self.ledger = () if spec.sync else tuple(ShardService.replay(records(job.folder)).ledger)
        vector = np.concatenate([saved.blocks[number].params for number in sorted(saved.blocks)])
        unpack(vector, self.model)

    @property
    def losses(self) -> list[float]:
        """Mean loss of each step."""
        by_version = {e["version"]: e["loss"] for e in self.events if e["event"] == "loss"}
        return [by_version[v] for v in sorted(by_version)]

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
    folder: Path | None = None,
    network: str = "local",
    hosts: Sequence[str] = (),
    ports: Sequence[int] | None = None,
    sites: Sequence[Site] = (),
    place: Mapping[str, Sequence[int]] | None = None,
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
        sgd, momentum or adam; its options (lr, ...) by name, see `labkit.elastic.optimizers`.
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
        Keeps events, logs and checkpoints, and training goes on from the newest good checkpoint that is there.
    network, hosts, ports
        Over what processes talk: "local", "tls" or "tcp", at which addresses (docs/elastic.md, Between hosts).
    sites : sequence of Site
        Where members may sit (docs/elastic.md, Over several hosts); the host of the first one is this machine.
    place : mapping, optional
        (workers, servers) by name of the site, instead of `workers` and `servers`; without it they sit on the first.

    Raises
    ------
    InputError
        If any of it makes no sense, or a job is running in the folder; nothing has been started then.
    """
    places = checked_sites(sites, network=network, hosts=hosts, devices=devices)
    addresses = hosts or [site.address for site in places if site.address]
    reach = Reach.checked(network, addresses, ports, job=f"job-{new_token().hex()[:12]}")
    seats = _checked_seats(places, place, servers=servers, workers=workers)
    servers, workers = (sum(of_role(seats, role).values()) for role in ROLES) if seats else (servers, workers)
    program = Program(model, data, loss)
    program.check()
    if not min(start_s, patience_s) > 0:
        raise InputError(f"start_s is {start_s}, patience_s {patience_s}; expected seconds above 0.")
    check_restarts(restarts, restarts_within_s)
    check_batch(len(data), batch=batch, n_shards=shards if sync else 1)
    if steps < 1:
        raise InputError(f"a job of {steps} steps; expected at least one.")
    from labkit.elastic.optimizers import optimizer as by_name

    by_name(optimizer, **options)
    cut = layout(model)
    if servers > cut.n_blocks:
        raise InputError(f"{servers} servers for {cut.n_blocks} blocks of parameters; expected at most one per block.")
    if servers < 1 or workers < 1:
        raise InputError(f"a job with {servers} servers and {workers} workers; expected at least one of each.")
    if standby:
        check_standby(servers=servers, sync=sync)
    _check_free(reach, places, seats, servers=servers)
    home = private_folder(Path(tempfile.mkdtemp(prefix="labkit-job-")) if folder is None else folder)
    _end_run(home)
    program.save(home)
    spec = Spec(
        params=[(p.name, p.first, list(p.shape)) for p in cut.params], extents=list(cut.extents), optimizer=optimizer,
        options=options, batch=batch, n_shards=shards, n_steps=steps, seed=seed, lease_s=lease_s,
        start_s=start_s, patience_s=patience_s,
        devices=tuple(devices), sync=sync, n_samples=len(data), reach=asdict(reach),
        sites=[asdict(site) for site in places],
    )  # fmt: skip
    if network != Network.LOCAL:
        spec = replace(spec, scheme=network)
    spec.save(home)
    _save_first(spec, home, pack(model))
    plan = Plan(
        servers=servers, workers=workers, save_every=save_every, standby=standby, parent=os.getpid(),
        restarts=restarts, restarts_within_s=restarts_within_s,
        place={site: list(numbers) for site, numbers in seats.items()} or None,
    )  # fmt: skip
    plan.save(home)
    secrets = Secrets.of(reach)
    Homes(home, reach=reach, secrets=secrets).close()  # what a run before this one has left in this folder
    return Job(home, program, keep=folder is not None, secrets=secrets)


def _checked_seats(
    sites: Sequence[Site], place: Mapping[str, Sequence[int]] | None, *, servers: int, workers: int
) -> Place:
    """Return how many sit where at the beginning; nothing for a job without sites."""
    if not sites:
        if place is not None:
            raise InputError(f"place {dict(place)} of a job without sites; name its sites, or leave it out.")
        return {}
    if place is None:
        return {sites[0].name: (workers, servers)}
    return checked(place, sites={site.name: site.host for site in sites}, lost=())


def _check_free(reach: Reach, sites: Sequence[Site], seats: Place, *, servers: int) -> None:
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


def _end_run(folder: Path) -> None:
    """Set aside what a run before this one has left of itself; its checkpoints stay.

    Raises
    ------
    RunningError
        If it is still running.
    """
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = f"a job is running in {folder}; wait until it is over, or give another folder."
            raise RunningError(told) from None
        (folder / STATE).unlink(missing_ok=True)
        (folder / LEASES).unlink(missing_ok=True)
        if (folder / EVENTS).exists():
            n = sum(1 for _ in folder.glob(f"*-{EVENTS}"))
            (folder / EVENTS).rename(folder / f"{n}-{EVENTS}")


def _check_queue(saved: Checkpoint, spec: Spec) -> None:
    """Refuse to go on with other samples, or in the other mode."""
    if not saved.step:
        return
    if saved.step >= spec.n_steps:
        raise InputError(
            f"the newest checkpoint of this folder is of step {saved.step} of {spec.n_steps}: there is nothing left to "
            "do; give more steps, or another folder."
        )
    if (saved.queue is None) != spec.sync:
        was, asked = ("asynchronous", "sync=False") if spec.sync else ("synchronous", "sync=True")
        raise InputError(f"the checkpoints of this folder are of {was} training: go on with {asked}, or elsewhere.")
    if saved.queue is not None:
        plan = saved.queue["plan"]
        known, given = (plan["n_samples"], plan["base_shard"], plan["seed"]), (spec.n_samples, spec.batch, spec.seed)
        if known != given:
            raise InputError(
                f"the checkpoints of this folder are of (samples, batch, seed) {known}; this job has {given}."
            )


def _save_first(spec: Spec, folder: Path, vector: Vector) -> None:
    """Write the checkpoint with which training begins, unless there is one to go on from."""
    checkpoints = spec.checkpoints(folder)
    if checkpoints.steps():
        _check_queue(checkpoints.newest(), spec)  # raises if it is of another model
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
