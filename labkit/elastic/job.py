"""A job that trains: its status, members and limits, requests to scale it at a step, and its end."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TextIO

from labkit.core.errors import InputError, LabkitError
from labkit.core.events import Cause
from labkit.elastic.checkpoint.resume import SavedModel, state_of
from labkit.elastic.controller.client import AttachedController, ControllerClient, ControllerSupervisor, new_id
from labkit.elastic.controller.job_files import EVENTS, LOST_KNOWN
from labkit.elastic.controller.losses import decoded
from labkit.elastic.errors import JobError, NotDoneError, OverError
from labkit.elastic.job_logs import EVERY_S, NewLines, failed, log_of, read_events
from labkit.elastic.process.causes import cause_named
from labkit.elastic.process.credentials import Credentials, Secrets
from labkit.elastic.process.limits import Amounts
from labkit.elastic.protocol.messages import clients
from labkit.elastic.protocol.program import Program, Spec
from labkit.elastic.protocol.sites import hosts_of, launcher_name
from labkit.elastic.result import Result, rescued_in
from labkit.elastic.transport import Lease
from labkit.elastic.validation import Validation, Validator


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a job.

    Attributes
    ----------
    phase : str
        starting, loading, training, restoring, taking_over or over.
    step : int
        Updates that are complete.
    loss : float or None
        Loss of the newest complete step.
    members : list of MemberStatus
        Members that run or start, without those that are being removed.
    lost : list of LostMember
        Members that were lost, oldest first: the last 20 that this controller knows.
    """

    phase: str
    step: int
    loss: float | None
    members: list[clients.MemberStatus]
    lost: list[clients.LostMember] = field(default_factory=list)

    @classmethod
    def of(cls, answer: clients.JobStatus) -> Self:
        """Return the status that a controller answered."""
        loss = None if answer.loss is None else decoded(answer.loss)
        return cls(answer.phase, answer.step, loss, answer.members, answer.lost)

    @classmethod
    def at_end(cls, events: Iterable[Mapping[str, Any]]) -> Self:
        """Return the status of a job that is over, from its events."""
        known = list(events)
        losses = [event for event in known if event["event"] == "loss"]
        last: Mapping[str, Any] = max(losses, key=lambda e: int(e["version"]), default={"version": -1, "loss": None})
        lost_events = [event for event in known if event["event"] == "left" and not event["expected"]]
        lost = [clients.LostMember(*(event[of.name] for of in fields(clients.LostMember))) for event in lost_events]
        return cls("over", last["version"] + 1, last["loss"], [], lost[-LOST_KNOWN:])


LEAVE_S: Final = 60.0
"""Seconds that a job has to save its state when its `with` block ends while it runs."""


class Job:
    """A training job that runs in processes of its own.

    `labkit.elastic.start` makes one; `labkit.elastic.train` runs one to its end.

    Parameters
    ----------
    folder : Path
        Folder of the job, filled by `labkit.elastic.job_start.fill`.
    program : Program
        Model, data and loss.
    keep : bool
        Whether the folder stays after the end.
    secrets : Secrets, optional
        Key of the certificate authority, and token; None for jobs without network.
    validation : Validation, optional
        What is measured of the model while it trains.
    lock : file, optional
        The claimed lock of the folder: see `ControllerSupervisor`.
    """

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        keep: bool,
        secrets: Secrets | None = None,
        validation: Validation | None = None,
        lock: TextIO | None = None,
    ) -> None:
        self.folder, self._program, self._keep, self._secrets = folder, program, keep, secrets
        self._lock = lock
        self._spec = Spec.load(folder)
        self._lease = Lease(self._spec.lease_s)
        self._ended = threading.Event()
        self._failure, self._cause = "", Cause.UNKNOWN
        self._log: tuple[Path, str] | None = None
        self._result: Result | None = None
        self._client = ControllerClient(folder, lease=self._lease, ended=self._ended)
        self._controller = self._attended()
        self._validator: Validator | None = None
        if validation is not None:
            self._validator = Validator(
                folder, self._spec, program, validation, ended=self._ended, stop=lambda: self.stop(save=True)
            )
        self._all_written = self._validator.done if self._validator else self._ended

    def _attended(self) -> ControllerSupervisor | AttachedController:
        return ControllerSupervisor(self.folder, secrets=self._secrets, ended=self._ended, lock=self._lock)

    @property
    def pid(self) -> int:
        """Process number of the controller."""
        return self._controller.pid

    # --- change it

    def auto(self, *_: object, **__: object) -> NoReturn:
        """Raise InputError: what configures itself does so from its beginning."""
        raise InputError(
            f"job.auto() of a job that trains already, in {self.folder}; expected labkit.auto(model, data, loss, "
            "steps=...) in place of start."
        )

    def scale(
        self, *, servers: int = 0, workers: int = 0, replace: Sequence[str] = (), strategy: str = "handover"
    ) -> None:
        """Add (or, below 0, remove) servers and workers, or replace members, while training goes on.

        Returns as soon as the controller has accepted the request; `events` show its progress.

        Parameters
        ----------
        servers, workers : int
            Change of their numbers.
        replace : sequence of str
            Names of members; each is removed, and a new one takes its place.
        strategy : str
            How the job is rescaled: handover, suspend or checkpoint.

        Raises
        ------
        InputError
            If a role would have no member, or there would be more servers than blocks; the job goes on unchanged.
        """
        replaced = list(replace)
        self._client.ask(clients.ScaleJob(new_id(), strategy, servers, workers, replaced), clients.ScalingAccepted)

    def place(self, place: Mapping[str, Sequence[int]], *, strategy: str = "handover") -> int:
        """Set the numbers of workers and servers on each site: one scaling that adds, removes and moves members.

        Returns as soon as the controller has accepted the request; `events` show its progress. If a server or the
        controller dies meanwhile, the scaling is restarted; if a host that it needs is lost, it is dropped.

        Parameters
        ----------
        place : mapping
            (workers, servers) by name of the site; a site that is not named gets none.
        strategy : str
            How the job is rescaled: handover, suspend or checkpoint.

        Returns
        -------
        int
            Number of the scaling, a column of its events.

        Raises
        ------
        InputError
            If there is no such site, its host is lost, a role would have no member, or there would be more servers
            than blocks; the job goes on unchanged.
        """
        wanted = {site: list(numbers) for site, numbers in place.items()}
        return self._client.ask(clients.ScaleJob(new_id(), strategy, place=wanted), clients.ScalingAccepted).scaling

    def balance(self, *, strategy: str = "handover") -> int:
        """Redistribute the blocks over the servers by the gradient bytes of each block, while training goes on.

        Returns as soon as the controller has accepted the request. Its event `assignment` has each server's part of
        the load `before` and `after`; where the load is even already, nothing moves. Later scalings use the same loads.

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
            If there is no such strategy; the job goes on unchanged.
        """
        return self._client.ask(clients.BalanceJob(new_id(), strategy), clients.ScalingAccepted).scaling

    def resize(self, amounts: Mapping[str, tuple[float | None, float | None]]) -> None:
        """Give members other cores and memory without a restart.

        Returns as soon as the controller has accepted the request; events `resized` have the `cores` of each member,
        and as `unable` what its host cannot limit. A member that replaces another one has no limits. Workers of
        asynchronous jobs compute with as many threads as they have cores; those of synchronous jobs with one thread,
        so that their bits stay the same.

        Parameters
        ----------
        amounts : mapping
            (cores, GB) by name of a member; None: no limit.

        Raises
        ------
        InputError
            If there is no such member, or an amount is not finite and > 0; the job goes on unchanged.
        """
        limits = {name: clients.MemberLimit(*astuple(Amounts(*amount))) for name, amount in amounts.items()}
        self._client.ask(clients.ResizeMembers(limits), clients.Accepted)

    def stop(self, *, save: bool = False) -> None:
        """End the job before its last step.

        Returns as soon as the controller has accepted the request: `wait` returns the result. Another `start` in the
        same folder goes on from there. A job that is over stays as it is.

        Parameters
        ----------
        save : bool
            Write a checkpoint first, so that no completed step is lost.
        """
        with contextlib.suppress(OverError):
            self._client.ask(clients.StopJob(save), clients.Accepted)

    def delete(self) -> None:
        """End the job, if it still runs, and remove its folder, unless `start` was given that folder.

        Steps since the last checkpoint are lost, and with the folder all that is not in the result.
        """
        if not self._ended.is_set():
            self._end(save=False)
        if self._validator is not None:
            self._validator.cancel()
        self._client.close()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- watch it

    def status(self) -> Status:
        """Return the state of the job.

        Raises
        ------
        NoAnswerError
            If the controller does not answer; the job goes on.
        """
        try:
            return Status.of(self._client.ask(clients.GetStatus(), clients.JobStatus))
        except OverError:
            return Status.at_end(self.events(follow=False))

    def events(self, *, follow: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the events so far and, with `follow`, those that come until the job is over."""
        if self._result is not None:
            yield from self._result.events
        else:
            yield from read_events(self.folder / EVENTS, ended=self._all_written, follow=follow)

    def show_printed(self) -> None:
        """Print on stderr what members print, with their names, as it comes; return when the job is over."""
        lines, over = NewLines(self.folder), False
        while not over:
            over = self._ended.wait(EVERY_S)
            for line in lines(now=True):
                print(f"{line.member}: {line.text}", file=sys.stderr)

    def saved(self) -> SavedModel:
        """Return the newest saved state of the model, while it trains or after: see `start(save_every=...)`.

        Raises
        ------
        CheckpointError
            If there is none.
        """
        checkpoints = self._spec.checkpoints(self.folder)
        version = checkpoints.newest().step
        return SavedModel(version, state_of(checkpoints, version, self._program.model))

    def host_home(self, host: str) -> bytes:
        """Return the files that a launcher needs on a host, as a tar.

        The launcher is `python -m labkit.elastic.process.host_launcher`. The tar holds a private key: send it by SSH
        into a folder that only its owner can enter. Members on that host get keys of their own through the job's
        network.

        Raises
        ------
        InputError
            If no site of the job is on the host, or the host is the job's home.
        JobError
            If the job ends before its controller listens.
        """
        spec = self._spec
        home, *others = hosts_of(spec.places.values())
        if host not in others:
            fault = f"host '{host}' is the job's home" if host == home else f"host '{host}' has no site of the job"
            raise InputError(f"{fault}; launchers are for {', '.join(others) or 'jobs with sites on other hosts'}.")
        self._client.open()  # the controller writes its address before it listens
        homes = Credentials(self.folder, reach=spec.reach, secrets=self._secrets)
        return homes.archive(launcher_name(host, spec.places.values()), host, files=spec.files)

    # --- its end

    def wait(self, *, timeout_s: float | None = None) -> Result:
        """Wait for the end, and return the result with the trained model; a second call returns the same result.

        A job that is not done in time, or whose waiting is interrupted, trains on.

        Raises
        ------
        NotDoneError
            If it is not over after `timeout_s` seconds.
        JobError
            If the job failed. Its folder stays, with logs and checkpoints; the message has its path.
        """
        if not self._ended.wait(timeout_s):
            why = f"the job is not done after {timeout_s:g} s, and trains on; wait again, or end it with stop()."
            raise NotDoneError(why)
        self._all_written.wait()
        if self._result is None:
            self._result = self._outcome()
            self.delete()  # the result has all that is needed of the folder
        return self._result

    def _outcome(self) -> Result:
        if not self._failure and not self.folder.exists():
            self._failure = f"the job was deleted, and its folder {self.folder} with it: there is no result."
        events = [] if self._failure else list(self.events(follow=False))
        last: dict[str, Any] = next((event for event in reversed(events) if event["event"] == "over"), {})
        if not self._failure and self._validator is not None and self._validator.failure is not None:
            self._keep, self._cause = True, Cause.ERROR
            self._failure = f"{self._validator.failure} The job was ended; its state is in {self.folder}."
            self._client.close()
        elif not self._failure and (not last or last["failure"]):
            self._keep = True  # its logs and checkpoints are needed to find the fault
            checkpoints = Spec.load(self.folder).checkpoints(self.folder)
            self._failure = failed(self.folder, str(last.get("failure", "")), checkpoints=checkpoints)
            self._log = log_of(self.folder, str(last.get("failure", "")), events)
            self._cause = cause_named(last.get("cause")) if last.get("failure") else self._controller.cause
            self._client.close()
        if self._failure:
            log_file, log = self._log or (None, "")
            raise JobError(self._failure, cause=self._cause, log_file=log_file, log=log)
        result = Result(self.folder, self._program.model, events)
        rescued = rescued_in(events)
        if rescued is not None and not self._keep:  # the result has all that is needed of it
            shutil.rmtree(rescued, ignore_errors=True)
        return result

    def _end(self, *, save: bool) -> None:
        """End the job, by force if it does not end; with `save` it has `LEAVE_S` seconds to write its state."""
        with contextlib.suppress(LabkitError):
            try:
                self.stop(save=save)
                if save and not self._ended.wait(LEAVE_S):
                    self.stop()
            except KeyboardInterrupt:  # the second interrupt: end at once
                self.stop()
        if not self._ended.wait(5 * self._lease.base_s):
            self._controller.kill()
            self._ended.wait(self._lease.base_s)

    def __enter__(self) -> Job:
        """Return the job."""
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """End the job if it still runs.

        Its state is saved first if `start` was given a folder, or if an exception ends the block, such as an interrupt;
        then a line on stderr has the folder, and how to go on.
        """
        if not self._ended.is_set() and (self._keep or kind is not None):
            self._end(save=True)
        if kind is not None and self._result is None and not self._failure:
            self._keep_saved()
        self.delete()

    def _keep_saved(self) -> None:
        """Keep the folder of a job whose block was interrupted if it has a checkpoint, and print where it is."""
        saved = max(self._spec.checkpoints(self.folder).steps(), default=0) if self.folder.exists() else 0
        if saved:
            self._keep = True
            where = f"the job was ended; its state after step {saved} is in {self.folder}"
            print(f"{where}: start(..., folder=...) continues from there.", file=sys.stderr)


_LINE = re.compile(r"(?P<when>\d+(?:\.\d+)?)(?P<unit>s?):(?P<n>[+-]\d+)(?P<what>ps|servers?|workers?)")


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """A change of the numbers of servers and workers, and its time.

    Attributes
    ----------
    when : float
        Completed steps, or seconds since training began.
    in_seconds : bool
        True: `when` is in seconds.
    servers, workers : int
        Change of their numbers.
    """

    when: float
    in_seconds: bool
    servers: int = 0
    workers: int = 0

    @classmethod
    def parse(cls, line: str) -> ScaleRequest:
        """Read a line.

        Raises
        ------
        InputError
            If it cannot be read.

        Examples
        --------
        >>> ScaleRequest.parse("5s:-1worker")
        ScaleRequest(when=5.0, in_seconds=True, servers=0, workers=-1)
        """
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InputError(
                f"'{line}' cannot be read; expected STEP:+1ps or SECONDSs:-1worker, e.g. 20:+1ps, 5s:+2ps."
            )
        n, unit = int(match["n"]), match["unit"]
        if match["what"].startswith("worker"):
            return cls(float(match["when"]), unit == "s", workers=n)
        return cls(float(match["when"]), unit == "s", servers=n)


def most_servers(servers: int, requests: Iterable[ScaleRequest]) -> int:
    """Return the most servers that a job may have at one time.

    >>> most_servers(1, map(ScaleRequest.parse, ("10:+2ps", "20:-1ps", "5s:+1worker")))
    3
    """
    return servers + sum(max(request.servers, 0) for request in requests)


def follow(job: Job, requests: Iterable[ScaleRequest], *, strategy: str, on_event: object = None) -> Result:
    """Run a job to its end, and send each request when it is due.

    Parameters
    ----------
    on_event : callable, optional
        Takes each event.
    """
    todo = sorted(requests, key=lambda request: request.when)
    began = None
    for event in job.events():
        if began is None and event["event"] == "began":
            began = event["time"]
        if event["event"] == "loss" and began is not None:
            step, seconds = event["version"] + 1, event["time"] - began
            due = [r for r in todo if r.when <= (seconds if r.in_seconds else step)]
            for request in due:
                job.scale(servers=request.servers, workers=request.workers, strategy=strategy)
            todo = [r for r in todo if r not in due]
        if callable(on_event):  # last: a picture takes its time to draw
            on_event(event)
    return job.wait()
