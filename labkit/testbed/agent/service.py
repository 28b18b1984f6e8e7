"""The verbs of the agent: what a client can request, and how its arguments are checked."""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from labkit.testbed.agent import sweep
from labkit.testbed.agent.bridge import build, version
from labkit.testbed.agent.connections import (
    AHEAD,
    ClientRequest,
    EventStream,
    Follow,
    ItemStream,
    MeasurementStream,
    MessageForward,
)
from labkit.testbed.agent.devices import ALLOTMENT, Devices, Gpu, GpuRequest, allotment, allotment_variable
from labkit.testbed.agent.fences import ORDERS, Fence, Fences
from labkit.testbed.agent.folder_layout import LOG, RESULT, TASK_SOCKET, Phase, machine_id, parts
from labkit.testbed.agent.gpus import Sampler
from labkit.testbed.agent.log_files import read_range
from labkit.testbed.agent.loop import Loop
from labkit.testbed.agent.measure import Meter, Yardstick
from labkit.testbed.agent.messages import (
    PROTOCOL,
    ClaimedGpus,
    Data,
    FolderRow,
    GpuReading,
    HeldGpu,
    Hello,
    HostMeasurement,
    Refusal,
    RenewedLease,
    StartedTask,
    check_name,
    now_s,
    wall_s,
)
from labkit.testbed.agent.processes import Key
from labkit.testbed.agent.runs import LEASE_S, AgentRuns, File, TaskRequest
from labkit.testbed.agent.sweep import run_in_subprocess

GPU: Final = re.compile(r"[A-Za-z0-9-]{1,80}")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED: Final = (TASK_SOCKET, LOG, RESULT, ALLOTMENT)
MOST_GPUS: Final = 1024
GPUS: Final = 'how many GPUs, numbers or identifiers of some, or for example [{"n": 1, "of": [0, 1]}]'
GRACE_S: Final = 5.0
DAY_S: Final = 86400.0
SHORT_S: Final = 0.2
"""Seconds between the two readings of a single measurement."""
Later = None
"""Returned by a verb that answers its request later."""


class RequestArguments:
    """Arguments of a request."""

    def __init__(self, verb: str, arguments: dict[str, Any]) -> None:
        self._verb, self._given, self._known = verb, dict(arguments), set[str]()

    def _take(self, name: str, default: Any = None) -> Any:
        self._known.add(name)
        return self._given.pop(name, default)

    def _wrong(self, name: str, value: object, expected: str) -> Refusal:
        return Refusal("argument", f"{self._verb}: {name} is {repr(value)[:100]}; expected {expected}")

    def done(self) -> None:
        """Refuse arguments that no verb has taken."""
        for name in self._given:
            near = get_close_matches(name, self._known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise Refusal("argument", f"{self._verb} takes no {name[:80]!r}.{hint}")

    def name(self, name: str) -> str:
        """Take a name of a run or task."""
        return check_name(self._take(name), name)

    def maybe_name(self, name: str) -> str | None:
        """Take a name, or None."""
        value = self._take(name)
        return None if value is None else check_name(value, name)

    def path(self, name: str) -> list[str]:
        """Take a relative path."""
        return parts(self._take(name), name)

    def number(self, name: str, *, default: float, low: float, high: float) -> float:
        """Take a number from `low` to `high`."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, value, "a number")
        if not low <= value <= high:
            raise self._wrong(name, value, f"{low:g} to {high:g}")
        return value

    def whole(self, name: str, *, default: int, low: int, high: int) -> int:
        """Take a whole number from `low` to `high`."""
        value = self.number(name, default=default, low=low, high=high)
        if value != int(value):
            raise self._wrong(name, value, "a whole number")
        return int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Take true or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def anything(self, name: str) -> Any:
        """Take any JSON value."""
        return self._take(name)

    def maybe_text(self, name: str) -> str | None:
        """Take a text without end-of-string characters, or None."""
        value = self._take(name)
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise self._wrong(name, value, "a text")
        return value

    def words(self, name: str) -> list[str]:
        """Take program and arguments of a command; no shell interprets them."""
        value = self._take(name)
        ok = isinstance(value, list) and value and all(isinstance(word, str) and "\0" not in word for word in value)
        if not ok or not value[0]:
            raise self._wrong(name, value, "a list of texts, the first a program")
        return list(value)

    def variables(self, name: str) -> dict[str, str]:
        """Take environment variables; errors do not show their values."""
        value = self._take(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, type(value).__name__, "an object of texts")
        for key, text in value.items():
            if not VARIABLE.fullmatch(key):
                raise self._wrong(name, key, "names of letters, digits and _")
            if not isinstance(text, str) or "\0" in text:
                raise self._wrong(f"{name}.{key}", type(text).__name__, "a text without end-of-string characters")
        return value

    def cores(self, name: str, *, allowed: set[int]) -> list[int] | None:
        """Take numbers of cores of this host, or None for all."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(type(each) is int for each in value):
            raise self._wrong(name, value, "a list of numbers of cores, or nothing for all")
        missing = sorted(set(value) - allowed)
        if missing:
            raise self._wrong(name, missing, f"cores of this host: {_ranges(allowed)}")
        return sorted(set(value))

    def gpus(self, name: str) -> list[GpuRequest] | None:
        """Take requests for GPUs: None leaves GPUs as they are, an empty list hides all.

        A number n requests any n; a list requests each of some, by number or identifier; a list of
        {"n": 1, "of": [0, 1]} requests n of some.
        """
        value = self._take(name)
        if value is None:
            return None
        value = [{"n": value}] if type(value) is int else value
        if not isinstance(value, list) or len(value) > MOST_GPUS:
            raise self._wrong(name, value, GPUS)
        return [ask for ask in (self._ask(name, each) for each in value) if ask.n]

    def _ask(self, name: str, value: object) -> GpuRequest:
        """Return the request for a GPU by number or identifier, or for n of some."""
        ask = {"n": 1, "of": [value]} if type(value) in (int, str) else value
        if not isinstance(ask, dict) or not {"n"} <= ask.keys() <= {"n", "of"}:
            raise self._wrong(name, value, GPUS)
        n, among = ask["n"], ask.get("of", [])
        if type(n) is not int or not 0 <= n <= MOST_GPUS or not isinstance(among, list):
            raise self._wrong(name, value, GPUS)
        if not all(type(each) in (int, str) and GPU.fullmatch(str(each)) for each in among):
            raise self._wrong(name, value, GPUS)
        return GpuRequest(n, tuple(str(each) for each in among))

    def files(self, name: str) -> list[File]:
        """Take small files: path -> {"data": base64, "mode": "0600"}."""
        value = self._take(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, type(value).__name__, "an object of files by path")
        return [self._file(name, path, file) for path, file in value.items()]

    def _file(self, name: str, path: str, file: object) -> File:
        names = parts(path, name)
        if path in RESERVED:
            raise self._wrong(name, path, f"another name than {', '.join(RESERVED)}, which the agent uses")
        if not isinstance(file, dict) or not isinstance(file.get("data"), str):
            raise self._wrong(f"{name}.{path}", type(file).__name__, '{"data": base64, "mode": "0600"}')
        mode = file.get("mode", "0600")
        if mode not in ("0400", "0600", "0500", "0700"):
            raise self._wrong(f"{name}.{path}.mode", mode, "0400, 0600, 0500 or 0700")
        try:
            data = base64.b64decode(file["data"], validate=True)
        except binascii.Error:
            raise Refusal("argument", f"{self._verb}: {name}.{path}.data is not base64") from None
        return File(names, data, int(mode, 8))


def _ranges(numbers: set[int]) -> str:
    """Return numbers as ranges.

    >>> _ranges({0, 1, 2, 5})
    '0-2, 5'
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)


class Service:
    """Answers requests."""

    def __init__(
        self,
        folder: Path,
        *,
        runs: AgentRuns,
        loop: Loop,
        log: Callable[[str], None],
        failed: Callable[[BaseException], None],
        leave: Callable[[str | None, dict[str, str]], None],  # ends the agent; with a program, executes it instead
        n_clients: Callable[[], int],
    ) -> None:
        self._folder, self._runs, self._loop, self._log, self._leave = folder, runs, loop, log, leave
        self._failed, self._n_clients = failed, n_clients
        self._sampler = Sampler(loop)
        self.devices = Devices(runs)
        self.yardstick = Yardstick()
        self._fences = Fences(folder)
        self._meter = Meter(folder, processes=runs.processes, sessions=runs.ender.sessions)
        self._verbs: dict[str, Callable[[ClientRequest, RequestArguments], Any]] = {
            "hello": self.hello, "shutdown": self.shutdown, "restart": self.restart, "start": self.start,
            "claim": self.claim, "tell": self.tell, "stop": self.stop, "renew": self.renew, "list": self.list,
            "watch": self.watch, "follow": self.follow, "more": self.more, "cancel": self.cancel, "read": self.read,
            "measure": self.measure, "gc": self.gc, "leader": self.leader, "lead": self.lead,
        }  # fmt: skip

    def serve(self, request: ClientRequest, arguments: dict[str, Any]) -> None:
        """Answer a request, now or later."""
        self.serve_later(request, lambda: self._answer(request, arguments))

    def serve_later(self, request: ClientRequest, answered: Callable[[], Any]) -> None:
        """Answer a request with the return value of a function, or with its refusal."""
        try:
            self._fences.check(request.fence)
            answer = answered()
        except Refusal as error:
            request.refuse(error)
        except Exception as error:
            self._failed(error)
            request.refuse(Refusal("fault", f"{request.verb}: the agent failed ({type(error).__name__}); see its log"))
        else:
            if answer is not Later and request.open:
                request.reply(answer)

    def _answer(self, request: ClientRequest, arguments: dict[str, Any]) -> Any:
        if request.verb not in self._verbs:
            near = get_close_matches(request.verb, self._verbs, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise Refusal("unknown_verb", f"unknown verb {request.verb[:80]!r}.{hint}")
        arguments = dict(arguments)
        if request.verb in ORDERS and (fence := arguments.pop("fence", None)) is not None:
            request.fence = Fence.of(fence)
            self._fences.lead(request.fence, request.connection)
        return self._verbs[request.verb](request, RequestArguments(request.verb, arguments))

    # --- who drives a run

    def leader(self, _: ClientRequest, arguments: RequestArguments) -> Any:
        """Return who drives a run."""
        name = arguments.name("fence")
        arguments.done()
        return self._fences.look(name)

    def lead(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Let the client drive a run from now on, with a higher generation than any before."""
        fence = Fence.of(arguments.anything("fence"))
        arguments.done()
        led = self._fences.lead(fence, request.connection)
        self._log(f"{fence.name} is driven by {fence.by} (generation {fence.generation})")
        return led

    # --- the agent itself

    def hello(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Describe agent and host; refuse a client of another protocol."""
        protocol = arguments.whole("protocol", default=0, low=0, high=10**6)
        arguments.done()
        if protocol != PROTOCOL:
            mine = f"this agent speaks protocol {PROTOCOL} (labkit {version()}), the client {protocol}"
            raise Refusal("protocol", f"{mine}: restart the agent; its tasks continue")
        self._sampler.ask(lambda reading: request.reply(self._hello(reading)))
        return Later

    def _hello(self, reading: GpuReading) -> Hello:
        return Hello(
            protocol=PROTOCOL, labkit=version(), build=build(), python=".".join(map(str, sys.version_info[:3])),
            host=socket.gethostname(), pid=os.getpid(), boot=self._runs.boot, machine=machine_id(),
            folder=str(self._folder), cores=sorted(os.sched_getaffinity(0)), memory_mb=_memory_mb(), wall_s=wall_s(),
            boot_s=round(now_s(), 3), n_runs=len(self._runs.all), n_clients=self._n_clients(),
            gpus=_held_gpus(reading, self.devices.holders()), gpus_absent=reading.absent,
        )  # fmt: skip

    def shutdown(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """End the agent; refused while a task runs."""
        arguments.done()
        if self._runs.busy:
            running = [f"{run.record.run}/{task.name}" for run in self._runs for task in run.record.running]
            raise Refusal("busy", f"{len(running)} tasks run: {', '.join(running[:10])}; stop them first")
        self._log("shut down")
        request.reply({})
        self._leave(None, {})
        return Later

    def restart(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Become the agent of another labkit; tasks go on."""
        python, path = arguments.maybe_text("python"), arguments.maybe_text("path")
        arguments.done()
        env = {"PYTHONPATH": path or ""}
        _check_python(python or sys.executable, env)
        self._log("restarted")
        request.reply({})
        self._leave(python or sys.executable, env)
        return Later

    # --- tasks

    def start(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Start a task; one that requests GPUs after the driver has reported them."""
        run = arguments.name("run")
        task = TaskRequest(
            task=arguments.name("task"),
            argv=arguments.words("argv"),
            env=arguments.variables("env"),
            cores=arguments.cores("cores", allowed=os.sched_getaffinity(0)),
            files=arguments.files("files"),
            nice=arguments.whole("nice", default=0, low=0, high=19),
            lease_s=arguments.number("lease_s", default=LEASE_S, low=0.1, high=30 * DAY_S),
        )
        asks, beside = arguments.gpus("gpus"), arguments.maybe_name("beside")
        arguments.done()
        if not asks:
            return self._start(run, task if asks is None else self._with_gpus(run, task, []))

        def start(reading: GpuReading) -> Any:
            gpus = self.devices.grant(Key(run, task.task), asks, reading=reading, beside=beside)
            return self._start(run, self._with_gpus(run, task, gpus))

        self._sampler.ask(lambda reading: self.serve_later(request, lambda: start(reading)))
        return Later

    def _with_gpus(self, run: str, task: TaskRequest, gpus: list[Gpu]) -> TaskRequest:
        """Return a request for a task that has these GPUs, and sees no others."""
        env = {**allotment_variable(self._runs.folder / run / task.task), **task.env}
        file = File([ALLOTMENT], allotment(gpus).encode())
        return replace(task, env=env, files=(*task.files, file), gpus=[gpu.uuid for gpu in gpus])

    def _start(self, run: str, request: TaskRequest) -> Any:
        task = self._runs.start(run, request)
        self._log(f"started {run}/{task.name} as {task.pid}")
        return StartedTask(task.pid, str(self._runs.get(run).folder / task.name), cold=not task.server)

    def claim(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Give a running task other GPUs."""
        key = Key(arguments.name("run"), arguments.name("task"))
        asks: list[GpuRequest] = arguments.gpus("gpus") or []
        beside = arguments.maybe_name("beside")
        arguments.done()

        def change(reading: GpuReading) -> Any:
            gpus = self.devices.change(key, asks, reading=reading, beside=beside)
            return ClaimedGpus({str(gpu.index): gpu.uuid for gpu in gpus})

        self._sampler.ask(lambda reading: self.serve_later(request, lambda: change(reading)))
        return Later

    def tell(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Forward a message to a task."""
        run, name = self._runs.get(arguments.name("run")), arguments.name("task")
        message = arguments.anything("message")
        timeout_s = arguments.number("timeout_s", default=30.0, low=0.0, high=3600.0)
        arguments.done()
        if run.task(name).phase == Phase.ENDED:
            raise Refusal("ended", f"task {name!r} of run {run.record.run!r} has ended: {run.task(name).how}")
        MessageForward(
            request,
            folder=run.folder / name,
            message=message,
            timeout_s=timeout_s,
            running=lambda: run.task(name).phase != Phase.ENDED and self._fences.holds(request.fence),
            loop=self._loop,
        )
        return Later

    def stop(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """End a task or a run; answer when no process of it is left."""
        run, task = arguments.name("run"), arguments.maybe_name("task")
        grace_s = arguments.number("grace_s", default=GRACE_S, low=0.0, high=3600.0)
        wait = arguments.flag("wait", default=True)
        arguments.done()
        here = self._runs.get(run)
        names = list(here.record.tasks) if task is None else [here.task(task).name]

        def reply() -> None:
            request.reply({name: here.task(name).how for name in names})

        self._log(f"stop {run}" + (f"/{task}" if task else ""))
        left = self._runs.stop(run, task, grace_s=grace_s)
        self._runs.ender.when_gone(left if wait else [], reply, request.refuse)
        return Later

    def renew(self, _: ClientRequest, arguments: RequestArguments) -> Any:
        """Extend the lease of a run."""
        run = arguments.name("run")
        lease_s = arguments.number("lease_s", default=LEASE_S, low=0.0, high=30 * DAY_S)
        arguments.done()
        self._runs.renew(run, lease_s)
        return RenewedLease(lease_s, list(self.yardstick.readings))

    def list(self, _: ClientRequest, arguments: RequestArguments) -> Any:
        """List runs and their tasks."""
        run = arguments.maybe_name("run")
        arguments.done()
        return self._runs.listed() if run is None else [self._runs.shown(self._runs.get(run))]

    # --- streams and files

    def watch(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Send the events of a run after a number, until it is over."""
        run = self._runs.get(arguments.name("run"))
        since = arguments.whole("since", default=0, low=0, high=2**53)
        ahead = arguments.whole("ahead", default=AHEAD, low=1, high=10**6)
        arguments.done()
        request.connection.attach(request, EventStream(request, run, since=since, ahead=ahead))
        return Later

    def follow(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Send the lines of a file of a task, until it has ended."""
        run = self._runs.get(arguments.name("run"))
        task, names = run.task(arguments.name("task")), arguments.path("file")
        offset = arguments.whole("offset", default=0, low=0, high=2**53)
        ahead = arguments.whole("ahead", default=AHEAD, low=1, high=10**6)
        arguments.done()
        stream = Follow(request, run, task, names=names, offset=offset, loop=self._loop, ahead=ahead)
        request.connection.attach(request, stream)
        return Later

    def more(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Let a stream send n more items."""
        number = arguments.whole("request", default=0, low=0, high=2**53)
        n = arguments.whole("n", default=1, low=1, high=10**6)
        arguments.done()
        stream = request.connection.stream(number)
        if isinstance(stream, ItemStream):
            stream.more(n)
        return {}

    def cancel(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """End a stream."""
        number = arguments.whole("request", default=0, low=0, high=2**53)
        arguments.done()
        request.connection.cancel(number)
        return {}

    def read(self, _: ClientRequest, arguments: RequestArguments) -> Any:
        """Return a piece of a file of a task."""
        run = self._runs.get(arguments.name("run"))
        task, names = run.task(arguments.name("task")), arguments.path("file")
        offset = arguments.whole("offset", default=0, low=0, high=2**53)
        n_bytes = arguments.whole("n_bytes", default=1 << 20, low=0, high=4 << 20)
        arguments.done()
        found = read_range(run.folder, [task.name, *names], offset=offset, n_bytes=n_bytes)
        if found is None:
            raise Refusal("no_file", f"task {task.name!r} has no file {'/'.join(names)!r}")
        start, data, size = found
        return Data(start, base64.b64encode(data).decode(), size)

    # --- measurements

    def measure(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Measure tasks and host, once or at an interval."""
        every_s = arguments.number("every_s", default=0.0, low=0.0, high=3600.0)
        pss, each = arguments.flag("pss", default=False), arguments.flag("each", default=False)
        ahead = arguments.whole("ahead", default=AHEAD, low=1, high=10**6)
        arguments.done()
        if every_s:
            stream = MeasurementStream(
                request, every_s=max(every_s, SHORT_S), loop=self._loop, sample=self._samples(every_s), ahead=ahead
            )
            request.connection.attach(request, stream)
            return Later
        sample = self._samples(SHORT_S)
        self._loop.after(SHORT_S, lambda: self._sampler.ask(lambda _: request.reply(sample(pss=pss, each=each))))
        return Later

    def gc(self, request: ClientRequest, arguments: RequestArguments) -> Any:
        """Remove the folders of runs that have been over for long enough."""
        older_s = arguments.number("older_s", default=DAY_S, low=0.0, high=1e9)
        dry_run = arguments.flag("dry_run", default=False)
        arguments.done()
        rows = sweep.plan(self._runs, older_s=older_s)
        if not dry_run:
            self._fences.forget_old()

        def done(found: list[dict[str, Any]] | None) -> None:
            for row in (FolderRow(**each) for each in found or ()):
                if row.removed:
                    self._runs.all.pop(row.run, None)
                    self._log(f"removed run {row.run}")
            if found is None:
                request.refuse(Refusal("fault", "the removal failed; see what is left with gc(dry_run=true)"))
            else:
                request.reply(found)

        run_in_subprocess(self._loop, lambda: _swept(self._runs.folder, rows, dry_run=dry_run), done=done)
        return Later

    def _samples(self, every_s: float) -> Callable[..., HostMeasurement]:
        """Return a function that measures the time since its last call."""
        before = self._meter.reading(max_age_s=every_s / 2)
        self._sampler.keep()

        def sample(*, pss: bool = False, each: bool = False) -> HostMeasurement:
            nonlocal before
            now = self._meter.reading(max_age_s=every_s / 2)
            before, last = now, before
            return self._meter.sample(last, now, gpus=self._sampler.keep(), pss=pss, each=each)

        return sample

    def close(self) -> None:
        """End the processes that serve the agent."""
        self._sampler.end()


def _swept(folder: Path, rows: list[FolderRow], *, dry_run: bool) -> list[dict[str, Any]]:
    return [asdict(row) for row in sweep.carry_out(folder, rows, dry_run=dry_run)]


def _check_python(python: str, env: dict[str, str]) -> None:
    """Refuse a Python that cannot load an agent, before this agent is replaced."""
    argv = [python, "-c", "import labkit.testbed.agent.daemon"]
    try:
        done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, timeout=20.0, check=False, cwd="/")
        fault = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] if done.returncode else ""
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        fault = str(error)
    if fault:
        raise Refusal("restart", f"{python!r} cannot load an agent: {fault}")


def _held_gpus(reading: GpuReading, holders: Mapping[str, set[Key]]) -> list[HeldGpu]:
    return [
        HeldGpu(gpu.index, gpu.name, gpu.uuid, gpu.memory_mb, gpu.mig, [f"{run}/{task}" for run, task in sorted(held)])
        for gpu in reading.gpus
        for held in [holders.get(str(gpu.uuid), set())]
    ]


def _memory_mb() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e6)
