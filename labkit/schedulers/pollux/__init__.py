"""Pollux: workers by goodput, and the Optimus that its simulator compares it with.

`pollux` is in `search`, `pollux_optimus` in `oracle`. Its Tiresias is `tiresias(published='pollux')`. The speeds that
all three were published with are `labkit.speed.goodput`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.core.protocols import Scheduler


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builder of each scheduler by its name."""
    from labkit.schedulers import options_of
    from labkit.schedulers.pollux.oracle import PolluxOptimus
    from labkit.schedulers.pollux.search import Pollux

    return {"pollux": (options_of(Pollux), Pollux), "pollux_optimus": (options_of(PolluxOptimus), PolluxOptimus)}
