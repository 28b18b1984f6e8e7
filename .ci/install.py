"""Build .venv and install labkit with some extras into it: `python3 .ci/install.py testbed,train`, as make does.

It needs the standard library alone. pip's own words go to .venv/install.log; here stands how far it is, and, where it
fails, one line that says what to do. Whatever was installed stays, so that the next call goes on from there.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
LOG = VENV / "install.log"
TICK_S = 2.0
STOPPED = 130

UNREACHABLE = (
    "the package index cannot be reached. Connect this machine to a network, or point pip at a mirror "
    "(pip config set global.index-url ADDRESS), then call make again; what was downloaded is kept."
)
MISSING = (
    r"No matching distribution found for ({0}\S*)|"
    r"depends on ({0}\S+?)(?:; [^\n]*)?\n *The user requested \(constraint\) \2\n *\n"
)
"""What pip says of a package that its index lacks; the second line: nothing but its own pin is the conflict."""
REMEDIES = (
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full: {free} MB are free in {fullest}, and all of labkit takes about 3,000 MB. "
        "Make room there (TMPDIR=FOLDER has pip unpack elsewhere), then call make again.",
    ),
    (r"Retry\(total=0\b", UNREACHABLE),  # pip goes on without, and then says that nothing matches
    (
        MISSING.format("torch"),
        "the package index has no {0} for this Python ({python}) and machine. Take a Python that it has wheels for "
        "(make clean; make PYTHON=python3.11), or point pip at an index that has it: docs/why/torch.md.",
    ),
    (
        MISSING.format(""),
        "the package index has no {0} for this Python ({python}). Take a Python that README names: "
        "make clean; make PYTHON=python3.11.",
    ),
    (
        r"Read-only file system|Permission denied: '([^']*)'",
        "{where} cannot be written. Clone labkit into a folder of your own, then call make there.",
    ),
    (
        r"Failed to establish a new connection|Name or service not known|Temporary failure in name resolution|"
        r"NewConnectionError|ReadTimeoutError|ConnectTimeoutError|ConnectionResetError|Network is unreachable|SSLError",
        UNREACHABLE,
    ),
)
"""What pip says when it fails, and what to do."""

CUDA_TORCH = (
    "the package index offers torch with CUDA only, some 3,000 MB more; without an NVIDIA GPU its CPU build does: "
    "docs/why/torch.md"
)


def main(extras: str) -> int:
    """Install, and return the exit code."""
    try:
        if not _works():
            _say("building .venv")
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True, capture_output=True)
        return _pip(extras)
    except KeyboardInterrupt:
        return _fail("stopped; the next make goes on from here.", code=STOPPED)
    except (subprocess.CalledProcessError, OSError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace")
        said += (getattr(error, "stdout", b"") or b"").decode(errors="replace")
        return _fail(remedy(f"{said}\n{error}") or f"cannot build .venv: {error}.")


def _works() -> bool:
    """Return whether .venv is whole, and not of a Python that is gone or was left half built."""
    python = VENV / "bin" / "python"
    try:
        return (
            python.exists() and not subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode
        )
    except OSError:
        return False


def _pip(extras: str) -> int:
    """Run pip, and show how far it is."""
    target = f".[{extras}]" if extras else "."
    command = [
        str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
        "--progress-bar=off", "--no-compile", "--editable", target, "--constraint", "constraints.txt",
    ]  # fmt: skip
    text: list[str] = []
    with LOG.open("w", encoding="utf-8") as log, _Ticker(f"installing {extras or 'labkit'}") as ticker:
        pip = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            log.flush()
            text.append(line)
            ticker.note(line)
        code = pip.wait()
        if not code:  # pip would do it on one core; what cannot be compiled here is compiled when it is imported
            ticker.doing = "compiling"
            subprocess.run(
                [command[0], "-m", "compileall", "-q", "-j", "0", "-x", "/tests/", str(VENV / "lib")],
                capture_output=True,
            )
    if not code:
        return 0
    said = "".join(text)
    return _fail(remedy(said) or f"pip could not install it: {_last_error(said)}")


class _Ticker:
    """Tells every other second how far pip is: on a terminal in one line that is written over, else in lines."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.what, self.doing, self.clock = what, "", clock
        self.began_s, self.over = clock(), threading.Event()
        self.warned = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def note(self, line: str) -> None:
        """Take a line of pip's."""
        found = re.match(r"\s*(Collecting|Downloading|Using cached|Building|Installing collected)\W+([\w.-]*)", line)
        if found:
            self.doing = "unpacking" if found[1].startswith("Installing") else found[2].split("-")[0]
        if re.match(r"Collecting nvidia-c", line) and not self.warned and not shutil.which("nvidia-smi"):
            self.warned = True
            _say(f"\n{CUDA_TORCH}")

    def _run(self) -> None:
        while not self.over.wait(TICK_S):
            n = len([*VENV.glob("lib/python*/site-packages/*.dist-info")])
            _say(
                f"{self.what}: {self.clock() - self.began_s:.0f} s, {n} packages there, {self.doing or 'starting pip'}",
                still=True,
            )

    def __enter__(self) -> _Ticker:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        if sys.stdout.isatty():
            print()


def remedy(said: str) -> str:
    """Return what to do where pip, or venv, failed with these words; empty: that is not known."""
    for pattern, line in REMEDIES:
        found = re.search(pattern, said)
        if found:
            places = [place for place in (VENV, ROOT, Path(tempfile.gettempdir())) if place.exists()]
            free, fullest = min((shutil.disk_usage(place).free // 2**20, str(place)) for place in places)
            named = [group for group in found.groups() if group]
            where = (*named, str(ROOT))[0]
            python = platform.python_version()
            return line.format(*named, free=free, fullest=fullest, where=where, python=python)
    return ""


def _last_error(said: str) -> str:
    errors = [line.strip() for line in said.splitlines() if line.startswith("ERROR")]
    return (errors or [said.strip().splitlines()[-1] if said.strip() else "it said nothing"])[-1]


def _say(line: str, *, still: bool = False) -> None:
    if still and sys.stdout.isatty():
        print(f"\r\033[K{line[:99]}", end="", flush=True)
    else:
        print(line, flush=True)


def _fail(why: str, *, code: int = 2) -> int:
    print(
        f"labkit's install: {why}{f' ({LOG.relative_to(ROOT)} has all of it)' if LOG.exists() else ''}", file=sys.stderr
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
