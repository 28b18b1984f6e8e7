"""A member that joins while others train: it imports and compiles at a low priority, to slow the others little.

`python -m labkit.elastic.process.newcomer FOLDER ROLE NAME [SITE [DEVICE]]`; after that it runs as any other member.
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
"""Niceness: about a tenth of a core where all cores are busy, and idle cores in full."""


def gently(do: Callable[[], object], *, nice: int = NICE) -> None:
    """Call a function at a low priority, in a thread of its own.

    A process may not raise its priority again, but on Linux each thread has a priority of its own.
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
    """Import the modules of a role, and compile its kernels, or read them from their cache."""
    from labkit.elastic.protocol.program import Spec

    if role == "server":
        import labkit.elastic.server.server
        from labkit.elastic.server.optimizers import optimizer

        spec = Spec.load(folder)
        optimizer(spec.optimizer, **spec.options).init(1)
    else:
        import torch  # noqa: F401

        import labkit.elastic.protocol.program
        import labkit.elastic.worker.push_pull
        import labkit.elastic.worker.synchronous  # noqa: F401


def main(arguments: list[str]) -> None:
    """Prepare at a low priority, then run as a member."""
    folder, role, *_ = arguments
    gently(partial(get_ready, Path(folder), role))
    from labkit.elastic.process import member

    member.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
