"""Run commands in forks of one warm process, and tell which of them ended otherwise than they may.

`python -m tests.fuzz.forked FIRST N` runs commands FIRST to FIRST + N - 1 and prints a line of JSON for each bad end;
with the word `stored` behind it, it damages stored folders instead (`tests.fuzz.stored`).
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

CPU_S = 60
"""Processor seconds after which a command counts as hanging; a quick machine needs less than one."""

MEMORY = 8 << 30
WALL_S = 600
"""It waits for something that never comes."""


def ran(words: list[str], *, cwd: Path) -> tuple[int, str]:
    """Return how a command ended (below 0: by which signal), and what it said on stderr."""
    said = cwd / ".stderr"
    child = os.fork()
    if not child:
        _be(words, cwd, said)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.read_text("utf-8", "replace")


def _be(words: list[str], cwd: Path, said: Path) -> None:
    """Be the command: never returns."""
    code = 70
    try:
        os.chdir(cwd)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")  # pytest has its own
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        if not any(
            word.endswith(("report", "--figure", "--out", "--resume")) for word in words
        ):  # the browser engine that draws reserves more
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(WALL_S)
        from labkit.cli.app import main

        sys.argv = ["labkit", *words]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def complaint(code: int, said: str) -> str:
    """Return what is wrong with an end, "" if nothing is."""
    told = [line for line in said.splitlines() if line.strip() and not line.startswith("labkit: note: ")]
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    if "Traceback" in said:
        return "a traceback"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code == 2 and not (len(told) == 1 and told[0].startswith("labkit: ")):
        return "not one line that says why"
    if code == 2 and len(told[0]) > 2000:
        return f"a line of {len(told[0]):,} letters"
    return "" if code != 1 or told else "exit code 1 without a word"


def files_in(folder: Path) -> dict[str, int]:
    """Return all files below a folder, by size, but what Python keeps of modules that it has read."""
    paths = {path: path.relative_to(folder) for path in folder.rglob("*")}
    return {
        str(name): path.stat().st_size for path, name in paths.items() if not {".stderr", "__pycache__"} & {*name.parts}
    }


def attempt(number: int) -> str:
    """Run one command; return what is wrong, "" if nothing is."""
    from tests.fuzz.commands import command, write_files

    rng = np.random.default_rng([7, number])
    with tempfile.TemporaryDirectory(prefix="labkit-fuzz-") as folder:
        cwd = Path(folder)
        write_files(cwd, rng)
        words = command(rng)
        before = files_in(cwd)
        code, said = ran(words, cwd=cwd)
        wrong = complaint(code, said)
        if not wrong and code == 2 and (left := set(files_in(cwd)) - set(before)):
            wrong = f"refused, and left {sorted(left)}"
    return wrong and f"command {number}: {wrong}: labkit {shlex.join(words)[:500]}\n{said[-1500:]}"


def warm() -> None:
    """Load all that commands load, kernels too, so that forks need not."""
    import altair  # noqa: F401
    import pandas as pd  # noqa: F401
    import pydantic.type_adapter  # noqa: F401 - of typer, when a command is called
    import typer

    from labkit.cli.app import app
    from labkit.experiment import compare
    from labkit.workloads.expressions import trace

    typer.main.get_command(app)
    compare(trace("poisson(4, per_hour=60)"), cluster="demo", schedulers=["fifo", "las", "drf", "tetris", "gavel_las"])


def main() -> None:
    """Run what the command line asks for."""
    from tests.fuzz import stored

    first, n = int(sys.argv[1]), int(sys.argv[2])
    warm()
    for number in range(first, first + n):
        if wrong := (stored.attempt if sys.argv[3:] else attempt)(number):
            print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    main()
