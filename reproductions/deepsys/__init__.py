"""DeepSys: a scheduler for each pod that places tasks where a small network predicts the highest speed."""

from __future__ import annotations

from labkit.schedulers.pods import Partitioned
from reproductions.deepsys.placer import FILES, DeepSys, load

WEIGHTS = FILES, load


def deepsys(*, weights: str = "", pods: bool = True, forward: str = "most_free") -> Partitioned:
    """Return the scheduler `deepsys`.

    Parameters
    ----------
    weights : str
        A file of `python -m reproductions.deepsys`; "": the weights that come with it.
    pods, forward : bool, str
        As `labkit.schedulers.pods.Partitioned` takes them.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    load(weights)  # so that what cannot be read is refused here, and not in the run
    return Partitioned(DeepSys(weights), pods=pods, forward=forward)
