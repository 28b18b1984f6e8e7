"""Examine a host: `examine.py FOLDER` reads questions as lines of JSON on stdin, and answers each by a message.

{"ask": "clock"} its time; {"ask": "facts"} facts about the host; {"ask": "torch"} the result of an import;
{"ask": "listen", "host": ADDRESS} opens a port that echoes the word in the answer to callers that send it;
{"ask": "dial", "peers": [[name, host, port, word], ...]} round trips to them;
{"ask": "pour", "peer": [host, port, word], "seconds": 1} the bytes that one of them receives.
The program and its port end with stdin.
"""

from __future__ import annotations

import hmac
import json
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

from labkit.testbed.onhost.shared import read_manifest, send

PATIENCE_S = 3.0
CHUNK = 1 << 18
TORCH_S = 60.0
TORCH = "import torch; print(torch.__version__, torch.cuda.device_count())"
LIMITS = "from labkit.elastic.process.limits import describe_limits; print(describe_limits())"
GPUS = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]


class Question(NamedTuple):
    """A question; which fields it needs depends on `ask`."""

    ask: str
    host: str = ""
    peers: list[list[Any]] = []  # noqa: RUF012 - never changed
    peer: list[Any] = []  # noqa: RUF012 - never changed
    seconds: float = 0.0

    @classmethod
    def read(cls, line: str) -> Question:
        """Return the question in a line of JSON."""
        return cls(**json.loads(line))


def output_of(command: list[str], patience_s: float = 10.0) -> tuple[int | None, str]:
    """Return exit code and output of a program; None and the error if it is missing or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip()


def gpus() -> list[str]:
    """Return a line for each GPU; empty if there is no driver."""
    code, output = output_of(GPUS)
    return output.splitlines() if code == 0 else []


def memory_gb() -> float:
    """Return the memory of the host."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def cores() -> int:
    """Return the number of cores that this user's processes may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def existing(path: str) -> str:
    """Return the nearest existing folder above a path."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def deployed(folder: str) -> dict[str, Any]:
    """Return hash and Python of the labkit in use here."""
    current = os.path.join(folder, "env", "current")
    hash = read_manifest(current).hash
    return {"hash": hash, "python": os.path.join(current, "python") if hash else ""}


def agent(folder: str) -> str:
    """Return "alive" if a process listens at the agent's socket, "dead" if none does, "none" without a socket."""
    path = os.path.join(folder, "agent.sock")
    if not os.path.exists(path):
        return "none"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        try:
            sock.connect(path)
        except OSError:
            return "dead"
    return "alive"


def facts(folder: str) -> dict[str, Any]:
    """Return facts about the host; `mode` is that of labkit's folder, None if it does not exist."""
    place = existing(folder)
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory_gb": memory_gb(),
        "free_gb": shutil.disk_usage(place).free / 1e9,
        "folder": folder,
        "writable": os.access(place, os.W_OK | os.X_OK),
        "mode": os.stat(folder).st_mode & 0o777 if os.path.isdir(folder) else None,
        "gpus": gpus(),
        "deployed": deployed(folder),
        "agent": agent(folder),
        "limits": limits(folder),
    }


def limits(folder: str) -> str:
    """Return the limits that a running process can have, as the labkit in use reports; empty without one."""
    python = deployed(folder)["python"]
    code, output = output_of([python, "-c", LIMITS]) if python else (None, "")
    return output if code == 0 else ""


def torch(folder: str) -> dict[str, Any]:
    """Return the version of torch and the number of GPUs that it sees, from the Python that jobs use."""
    python = deployed(folder)["python"] or sys.executable
    code, output = output_of([python, "-c", TORCH], TORCH_S)
    if code != 0:
        return {"version": "", "gpus": 0, "error": (output.splitlines() or ["no answer"])[-1]}
    version, count = output.split()[-2:]
    return {"version": version, "gpus": int(count), "error": ""}


class EchoServer:
    """A socket that echoes a secret word to a caller that sends it, then counts bytes; nothing to other callers."""

    def __init__(self, host: str) -> None:
        self.word = secrets.token_hex(16)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.sock = socket.socket(family)
        self.sock.bind((host, 0))
        self.sock.listen(64)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        """Answer callers."""
        while True:
            caller, _ = self.sock.accept()
            threading.Thread(target=self.answer, args=(caller,), daemon=True).start()

    def answer(self, caller: socket.socket) -> None:
        """Echo the word, then count bytes until the caller has sent all."""
        with caller:
            caller.settimeout(PATIENCE_S)
            try:
                received = caller.recv(len(self.word), socket.MSG_WAITALL)
                if not hmac.compare_digest(received, self.word.encode()):
                    return
                caller.sendall(received)
                count, buffer = 0, bytearray(CHUNK)
                while taken := caller.recv_into(buffer):
                    count += taken
                caller.sendall(str(count).encode())
            except OSError:
                return


def listen(host: str) -> dict[str, Any]:
    """Open an echo port at an address of this host."""
    try:
        server = EchoServer(str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0]))
    except OSError as error:
        return {"error": f"{host}: {error.strerror or error}"}
    return {"port": server.sock.getsockname()[1], "word": server.word}


def connected(host: str, port: int, word: str) -> socket.socket:
    """Return a connection to another host's echo port, after that has echoed the word."""
    sock = socket.create_connection((host, port), timeout=PATIENCE_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(word.encode())
        if sock.recv(len(word), socket.MSG_WAITALL) != word.encode():
            raise OSError("another program answers there")
    except OSError:
        sock.close()
        raise
    return sock


def dialled(host: str, port: int, word: str) -> dict[str, Any]:
    """Connect to another host's echo port: seconds of a round trip, or why it failed."""
    began = time.monotonic()
    try:
        connected(host, port, word).close()
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"rtt_s": (time.monotonic() - began) / 2}  # one to connect, one for the word


def pour(host: str, port: int, word: str, seconds: float) -> dict[str, Any]:
    """Send to another host for some seconds: bytes, and the seconds until all of them had arrived."""
    chunk = bytes(CHUNK)
    try:
        with connected(host, port, word) as sock:
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                sock.sendall(chunk)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(10 * PATIENCE_S)
            count = int(sock.recv(32) or b"0")
            return {"bytes": count, "seconds": time.monotonic() - began}
    except OSError as error:
        return {"error": error.strerror or str(error)}


def dial(peers: list[list[Any]]) -> dict[str, dict[str, Any]]:
    """Connect to the echo ports of other hosts, all at once."""
    found: dict[str, dict[str, Any]] = {}

    def connect(name: str, host: str, port: int, word: str) -> None:
        found[name] = dialled(host, port, word)

    threads = [threading.Thread(target=connect, args=peer) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def answer(question: Question, folder: str) -> Any:
    """Return the answer to a question."""
    what = question.ask
    if what == "clock":
        return {"time_s": time.time()}  # noqa: TID251 - the two hosts' clocks are compared
    if what == "facts":
        return facts(folder)
    if what == "torch":
        return torch(folder)
    if what == "listen":
        return listen(question.host)
    if what == "pour":
        host, port, word = question.peer
        return pour(host, port, word, question.seconds)
    return dial(question.peers)


def main(folder: str) -> None:
    """Answer until stdin ends."""
    folder = os.path.abspath(os.path.expanduser(folder))
    for line in sys.stdin:
        send(answer(Question.read(line), folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
