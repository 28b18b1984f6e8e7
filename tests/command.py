"""The `labkit` command as tests run it: a fork of a warm process, which has loaded what a new one loads for seconds.

A fork has its own folder, environment, streams and exit code. Tests of the start itself run `python -m labkit`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from functools import cache
from pathlib import Path

from tests.hang import HANG_S

ROOT = Path(__file__).parents[1]
LOADS = {
    "deploy": ("labkit.cli.queue", "labkit.experiment.queued"),
    "traces": ("labkit.plots", "pyarrow.csv"),
    "train": ("labkit.elastic.job", "labkit.elastic.models.networks", "labkit.experiment.auto", "torch"),
    "train-policy": ("labkit.learning.training", "reproductions.dl2.command", "torch._dynamo"),
}
"""What a command loads for seconds and others do not: the warm process loads it when it first forks that command."""


def labkit(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; return its exit code and what it wrote."""
    with tempfile.TemporaryDirectory() as told:
        out, err = Path(told, "out"), Path(told, "err")
        order = {"words": words, "cwd": str(cwd), "out": str(out), "err": str(err), "environment": dict(os.environ)}
        warm = _warm()
        assert warm.stdin is not None
        assert warm.stdout is not None
        warm.stdin.write(json.dumps(order) + "\n")
        warm.stdin.flush()
        code = int(warm.stdout.readline())
        return subprocess.CompletedProcess(["labkit", *words], code, out.read_text("utf-8"), err.read_text("utf-8"))


def labkit_in_a_process(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process: for commands that train, which start processes of their own."""
    return subprocess.run(
        [sys.executable, "-m", "labkit", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


@cache
def _warm() -> subprocess.Popen[str]:
    """Start the process that forks; it ends with the process that reads from it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.command"], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _become(order: dict[str, str], words: list[str]) -> None:
    """Be the command: never returns."""
    for number, (path, flags) in enumerate(
        [(os.devnull, os.O_RDONLY), (order["out"], os.O_WRONLY | os.O_CREAT), (order["err"], os.O_WRONLY | os.O_CREAT)]
    ):
        os.dup2(os.open(path, flags, 0o600), number)
    os.chdir(order["cwd"])
    sys.argv = ["labkit", *words]
    from labkit.cli.app import main

    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code)


def _end(code: int) -> None:
    """End as a process does, but leave alone what is loaded: to take it apart takes longer than most commands."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def serve() -> None:
    """Fork for each order that comes, and tell how each fork ended."""
    from tests.fuzz.forked import warm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fork may say them for the first time
        warm()
    for line in sys.stdin:
        order = json.loads(line)
        for module in LOADS.get("".join(order["words"][:1]), ()):
            importlib.import_module(module)
        gc.freeze()  # a fork need not copy what it does not collect
        if not (child := os.fork()):
            os.environ.clear()
            os.environ.update(order.pop("environment"))
            _become(order, order.pop("words"))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
