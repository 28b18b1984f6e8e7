"""A process that joins training under way: gets ready at a low priority, so that it takes little from the others.

`python -m labkit.elastic.newcomer FOLDER ROLE NAME [SITE [DEVICE]]`; then it is a member like any other.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

NICE: Final = 10
"""About a tenth of a core is left to it where all are busy, and all that nobody else wants."""


GROUP: Final = Path("/proc/self/autogroup")
AGAIN_S: Final = 0.11
"""Linux lets users change the priority of a session ten times a second, all of them together."""


@contextmanager
def session_at(nice: int) -> Iterator[None]:
    """Have a low priority among sessions, if this process leads one of its own.

    Where Linux shares cores among sessions (sched_autogroup, sched(7)), priorities of threads count only within one.
    """
    try:
        before = int(GROUP.read_text().split()[-1])
        own = os.getsid(0) == os.getpid()
    except (OSError, ValueError, IndexError):
        own = False
    lowered = own and _set_session(nice)
    try:
        yield
    finally:
        if lowered:
            _set_session(before)


def _set_session(nice: int, *, attempts: int = 50) -> bool:
    """Set the priority of this session; False where that is not allowed."""
    pause = threading.Event()
    for _ in range(attempts):
        try:
            GROUP.write_text(str(nice))
        except BlockingIOError:
            pause.wait(AGAIN_S)
        except OSError:
            return False
        else:
            return True
    return False


def gently(do: Callable[[], object], *, nice: int = NICE) -> None:
    """Do something at a low priority, and come back at one's own.

    A process may not raise its priority again, but on Linux each thread has its own.
    """
    failure: list[BaseException] = []

    def lower() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
            do()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=lower, name="getting ready")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


def get_ready(folder: Path, role: str) -> None:
    """Import what a role needs, and compile (or read from its cache) what updates need."""
    from labkit.elastic.member import Spec

    if role == "server":
        import labkit.elastic.server
        from labkit.elastic.optimizers import optimizer

        spec = Spec.load(folder)
        optimizer(spec.optimizer, **spec.options).init(1)
    else:
        import torch  # noqa: F401

        import labkit.elastic.program
        import labkit.elastic.worker  # noqa: F401


def main(arguments: list[str]) -> None:
    """Get ready, and be a member."""
    folder, role, *_ = arguments
    with session_at(NICE):
        gently(partial(get_ready, Path(folder), role))
    from labkit.elastic import member

    member.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
