"""DLRover's brain: it finds out how many workers, servers and cores each job of parameter servers needs.

One file per stage, pure: `history` (where a job starts), `fit` (what was measured), `plan` (what is best for one job),
`stages` (when), `select` (who gets the cores). `carry` makes tasks of plans, and `scheduler` asks them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.core.protocols import Scheduler


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builder of the scheduler by its name."""
    from labkit.schedulers import options_of
    from labkit.schedulers.dlrover.scheduler import Dlrover

    return {"dlrover": (options_of(Dlrover), Dlrover)}
