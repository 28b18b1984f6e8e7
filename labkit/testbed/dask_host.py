"""One host of a Dask cluster: `start FOLDER` starts processes in the background, `stop FOLDER` ends them.

FOLDER/plan.json lists the processes of this host. The caller has written that file, of mode 0600: it holds the host's
key.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from labkit.core.errors import InputError, LabkitError
from labkit.elastic.transport.certificates import private_folder
from labkit.system.private_files import write_private
from labkit.testbed.laptop.processes import BedProcess, end, process, processes

PLAN, LEADER, LOG = "plan.json", "leader.json", "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """Processes of the cluster on one host."""

    name: str
    address: str
    """`name` and `address`: the host, and the address on which its processes listen."""
    scheduler: str = ""
    """Address of the scheduler; empty: it runs on this host."""
    workers: int | None = None
    """Worker processes; None: as many as cores."""
    idle_s: float
    """The scheduler ends by itself after so long without work."""
    files: dict[str, str] = field(repr=False)
    """Authority, certificate and key of the host as text, by name of the file."""

    def __post_init__(self) -> None:
        for name in self.files:
            if Path(name).name != name:
                raise InputError(f"{PLAN}: '{name[:80]}' is no name of a file")

    def to_json(self) -> bytes:
        """Return it for plan.json."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the plan in a folder; InputError if it has another form: the field, and what was expected."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_json((folder / PLAN).read_bytes())
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]  # the value may be the key
            where = ".".join(map(str, fault["loc"])) or "the file"
            raise InputError(f"{folder / PLAN}: {where}: {fault['msg']}; run `fab dask-up` again.") from None


LOST_S: Final = 60
"""Workers end when they have not found the scheduler for so long."""
NOWHERE: Final = "127.0.0.1:0"
"""Dask always opens a server for web pages too; here it has no pages, and it cannot be reached from other hosts."""

SETTINGS: Final[dict[str, Any]] = {
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "500ms",
    "distributed.worker.profile.enabled": False,
}
"""Dask watches itself less often than by default, which takes each of its processes some hundredths of a core."""


def start(folder: Path) -> str:
    """Start the processes of the plan in a session of their own; return the scheduler's address once it runs."""
    refuse_running(folder)
    private_folder(folder)
    with (folder / LOG).open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "run", str(folder)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    found = process(child.pid)
    (folder / LEADER).write_text(json.dumps({"pid": child.pid, "started": found.started if found else ""}), "utf-8")
    address_line = (child.stdout.readline() if child.stdout else b"").decode().strip()
    if not address_line:
        child.wait()
        last = (folder / LOG).read_text("utf-8", "replace").strip().splitlines()[-1:]
        raise InputError(f"Dask ended at once: {''.join(last) or 'it has no output'}.")
    return address_line


def refuse_running(folder: Path) -> None:
    """Raise if a cluster has processes here."""
    if _members(folder):
        raise InputError(f"a Dask cluster has processes in {folder} already; end it first: fab dask-down.")


def stop(folder: Path) -> None:
    """End all processes of the cluster on this host, and remove its folder with the key."""
    if not folder.exists():
        return
    left = end(lambda: _members(folder), patience_s=5.0)
    if left:
        raise InputError(f"process {left[0].pid} of the Dask cluster does not end; see {folder / LOG}.")
    shutil.rmtree(folder)


def _members(folder: Path) -> list[BedProcess]:
    """Return the processes of the session that `start` began here."""
    try:
        noted = json.loads((folder / LEADER).read_text("utf-8"))
    except FileNotFoundError:
        return []
    leader = process(noted["pid"])
    if leader is not None and leader.started != noted["started"]:  # the number belongs to another process now
        return []
    return [each for each in processes() if _session(each.pid) == noted["pid"]]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def run(folder: Path) -> None:
    """Run the processes of the plan until they end, or SIGTERM arrives."""
    plan = HostPlan.read(folder)
    for name, text in plan.files.items():
        write_private(folder / name, text.encode())
    for name in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{name}_NUM_THREADS"] = "1"
    asyncio.run(_serve(folder, plan))


async def _serve(folder: Path, plan: HostPlan) -> None:
    import dask
    from distributed import Nanny, Scheduler

    security = _security(folder)
    settings = SETTINGS | {f"distributed.{role}.http.routes": [] for role in ("scheduler", "worker")}
    common = {"security": security, "protocol": "tls", "host": plan.address, "dashboard_address": NOWHERE}
    async with AsyncExitStack() as stack:
        stack.enter_context(dask.config.set(settings))
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        parts: list[Any] = []
        if not plan.scheduler:
            parts.append(await stack.enter_async_context(Scheduler(**common, port=0, idle_timeout=plan.idle_s)))
        address = plan.scheduler or parts[0].address
        nannies = [
            Nanny(
                address, **common, port=0, worker_port=0, nthreads=1, name=f"{plan.name}-{i}", death_timeout=LOST_S,
                local_directory=str(folder / "space"), config=settings,
            )
            for i in range(plan.workers or len(os.sched_getaffinity(0)))
        ]  # fmt: skip
        parts += await asyncio.gather(*(stack.enter_async_context(nanny) for nanny in nannies))
        _report(address, folder / LOG)
        waiting = [asyncio.ensure_future(part.finished()) for part in parts]
        await asyncio.wait([*waiting, asyncio.ensure_future(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)


def _security(folder: Path) -> Any:
    from distributed import Security

    certificate, key = str(folder / "host.pem"), str(folder / "host.key")
    files = {f"tls_{role}_{kind}": path for role in ("scheduler", "worker", "client")
             for kind, path in (("cert", certificate), ("key", key))}  # fmt: skip
    return Security(require_encryption=True, tls_ca_file=str(folder / "authority.pem"), **files)


def _report(address: str, log: Path) -> None:
    """Report that all processes run; from then on write to the log only."""
    print(address, flush=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)


def main(words: Sequence[str]) -> int:
    """Carry out the command; report a failure in one line."""
    do, folder = words[0], Path(words[1]).expanduser()
    try:
        if do == "start":
            print(start(folder))
        elif do == "free":
            refuse_running(folder)
        elif do == "stop":
            stop(folder)
        else:
            run(folder)
    except LabkitError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
