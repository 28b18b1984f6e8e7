"""The program that SSH runs: connects stdin and stdout to the agent of a folder, which it starts if there is none."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from labkit.elastic.forkserver import client as forks
from labkit.elastic.forkserver import protocol as fork_protocol
from labkit.system import private_files, unix_sockets
from labkit.system.release import installed
from labkit.testbed.agent.folder_layout import SOCKET, call, own_folder
from labkit.testbed.agent.messages import MARK, PROTOCOL, Refusal, pack

START_S: Final = 30.0
ATTEMPTS: Final = 5
"""Attempts: an agent may end just when a client connects."""


@cache
def build() -> str:
    """Return a digest of the sources of this package and of the modules that it uses."""
    digest = hashlib.sha256()
    used = [Path(str(module.__file__)) for module in (private_files, unix_sockets, forks, fork_protocol)]
    for path in [*sorted(Path(__file__).parent.glob("*.py")), *used]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def version() -> str:
    """Return labkit's version."""
    found = installed()
    return found["Version"] if found is not None else "unknown"  # run from its sources


def reach(folder: Path, *, start: bool) -> socket.socket:
    """Connect to the agent of a folder; Refusal if there is none and it cannot or may not be started."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(OSError):
            return call(folder, SOCKET)
        if not start:
            raise Refusal("no_agent", f"no agent runs in {folder}")
        _start(folder)
    raise Refusal("no_agent", f"the agent of {folder} was started {ATTEMPTS} times and is gone again; see its log")


def search_path() -> str | None:
    """Return the PYTHONPATH that leads to this labkit from any folder."""
    search = os.environ.get("PYTHONPATH")
    root = str(Path(__file__).parents[3])
    if not sys.path or Path(sys.path[0]).absolute() != Path(root):
        return search
    return root if search is None else f"{root}{os.pathsep}{search}"  # found in the working folder


def _start(folder: Path) -> None:
    argv = [sys.executable, "-m", "labkit.testbed.agent", str(folder)]
    path = search_path()
    env = os.environ if path is None else {**os.environ, "PYTHONPATH": path}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_S, check=False, env=env, cwd="/"
        )
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Refusal("no_agent", f"the agent of {folder} did not start ({type(error).__name__})") from None
    if "fault" in answer:
        raise Refusal(answer["fault"]["kind"], answer["fault"]["message"])


def join(sock: socket.socket) -> None:
    """Copy bytes in both directions until one end is closed."""
    threading.Thread(target=_carry_in, args=(sock,), daemon=True).start()
    with contextlib.suppress(OSError):
        while data := sock.recv(1 << 16):
            _write_all(1, data)


def _carry_in(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, 1 << 16):
            sock.sendall(data)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _write_all(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bridge; its first line describes the installed labkit."""
    parser = argparse.ArgumentParser(prog="python -m labkit.testbed.agent.bridge", description=__doc__)
    parser.add_argument("folder", help="of the agent")
    parser.add_argument("--no-start", action="store_true", help="do not start an agent where none runs")
    options = parser.parse_args(argv)
    me = {"protocol": PROTOCOL, "build": build(), "python": sys.executable, "path": search_path()}
    try:
        _write_all(1, MARK + pack(me))
        sock = reach(own_folder(options.folder), start=not options.no_start)
    except Refusal as error:
        _write_all(1, pack({"id": None, "error": error.to_json()}))
        return 1
    except BrokenPipeError:
        return 1
    join(sock)
    os._exit(0)  # the other direction may wait for ever


if __name__ == "__main__":
    sys.exit(main())
