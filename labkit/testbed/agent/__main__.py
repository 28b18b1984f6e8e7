"""Start the agent of a folder in the background: python -m labkit.testbed.agent FOLDER."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence

from labkit.testbed.agent.daemon import IDLE_S, Daemon, fault_line, inherited, listen, lock
from labkit.testbed.agent.folder_layout import own_folder
from labkit.testbed.agent.log_files import JOURNAL
from labkit.testbed.agent.messages import Refusal
from labkit.testbed.agent.runs import BED


def main(argv: Sequence[str] | None = None) -> int:
    """Start the agent; print a line of JSON with whether it is ready."""
    parser = argparse.ArgumentParser(prog="python -m labkit.testbed.agent", description=__doc__)
    parser.add_argument("folder", help="private to its owner: state, socket, and the folders of runs")
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="leave after so long without work (%(default)s s)")
    parser.add_argument("--kept", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.kept:
        held, listener = inherited(options.kept)
        Daemon(own_folder(options.folder), held=held, listener=listener, idle_s=options.idle_s).run()
        return 0
    _clean_environment()
    reading, writing = os.pipe()
    if os.fork() == 0:
        _in_background(lambda: _serve(options.folder, options.idle_s, writing))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        line = pipe.readline() or json.dumps(fault_line(Refusal("fault", f"the agent did not start; see {JOURNAL}")))
    print(line.strip(), flush=True)
    return 1 if "fault" in json.loads(line) else 0


def _clean_environment() -> None:
    """Remove the label of a task that started this process; variables of a laptop testbed stay."""
    labels = [name for name in os.environ if name.startswith("LABKIT_") and name not in BED]
    if labels:
        env = {name: value for name, value in os.environ.items() if name not in labels}
        os.execve(sys.executable, [sys.executable, "-m", "labkit.testbed.agent", *sys.argv[1:]], env)


def _in_background(serve: Callable[[], None]) -> None:
    """Run as a daemon in a session of its own; never return."""
    status = 1
    try:
        os.setsid()
        if os.fork() == 0:
            serve()
        status = 0
    finally:
        os._exit(status)


def _serve(path: str, idle_s: float, writing: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o077)
    try:
        folder = own_folder(path)
        held = lock(folder)
        daemon = None if held is None else Daemon(folder, held=held, listener=listen(folder), idle_s=idle_s)
        answer = {"ready": True, "began": held is not None}
    except (Refusal, OSError) as error:
        fault = error if isinstance(error, Refusal) else Refusal("fault", f"the agent did not start: {error}")
        daemon, answer = None, fault_line(fault)
    os.chdir("/")
    os.write(writing, json.dumps(answer).encode() + b"\n")
    os.close(writing)
    if daemon is not None:
        _let_go_of_the_terminal()
        daemon.run()


def _let_go_of_the_terminal() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(nothing, handle)
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
