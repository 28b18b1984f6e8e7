"""A process of a job: `python -m labkit.elastic.process.member FOLDER ROLE NAME [SITE [DEVICE]]`."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
from pathlib import Path

from labkit.elastic.process.local_members import end_offspring, mark_of
from labkit.elastic.process.member_process import MemberProcess
from labkit.elastic.process.server_member import ServerMember
from labkit.elastic.process.worker_member import WorkerMember


def main(arguments: list[str]) -> None:
    """Run a server or a worker to its end."""
    folder, role, name, *seat = arguments
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 writes the stack of every thread into the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher ends members
    kinds: dict[str, type[MemberProcess]] = {"server": ServerMember, "worker": WorkerMember}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what user code prints is read while it trains
    kinds[role](Path(folder), name, *seat).run()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    end_offspring(os.getpid(), mark_of(Path(folder), name))
    os._exit(0)  # all is sent and closed; the end of libraries would take a second


if __name__ == "__main__":
    main(sys.argv[1:])
