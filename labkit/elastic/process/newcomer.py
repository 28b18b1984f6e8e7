"""A process that joins training under way: gets ready at a low priority, so that it takes little from the others.

`python -m labkit.elastic.process.newcomer FOLDER ROLE NAME [SITE [DEVICE]]`; then it is a member like any other.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

NICE: Final = 10
"""About a tenth of a core is left to it where all are busy, and all that nobody else wants."""


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
    from labkit.elastic.process.member import Spec

    if role == "server":
        import labkit.elastic.server.arrivals
        from labkit.elastic.server.optimizers import optimizer

        spec = Spec.load(folder)
        optimizer(spec.optimizer, **spec.options).init(1)
    else:
        import torch  # noqa: F401

        import labkit.elastic.protocol.program
        import labkit.elastic.worker.arrivals
        import labkit.elastic.worker.synchronous  # noqa: F401


def main(arguments: list[str]) -> None:
    """Get ready, and be a member."""
    folder, role, *_ = arguments
    gently(partial(get_ready, Path(folder), role))
    from labkit.elastic.process import member

    member.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
