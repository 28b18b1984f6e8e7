"""A progress bar for runs: how many jobs have completed."""

from __future__ import annotations

import numpy as np

from labkit.core.events import Events, Kind
from labkit.system.progress import counter


class ProgressBar:
    """A bar that counts the jobs that are done, in a terminal or in a notebook; those given up are told beside it."""

    def __init__(self, name: str, *, total: int) -> None:
        self._bar = counter(total, name=f"{name:>8}", unit="job")
        self._n_dropped = 0

    def __call__(self, batch: Events) -> None:
        """Count the jobs that completed in a batch, and those that were given up."""
        done, dropped = (int(np.count_nonzero(batch["kind"] == kind)) for kind in (Kind.COMPLETED, Kind.DROPPED))
        if done:
            self._bar.update(done)
        if dropped:
            self._n_dropped += dropped
            self._bar.set_postfix_str(f"{self._n_dropped} given up")

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
