"""Attention (SCARL's part for machines): a scheduler for each pod that places tasks where attention is highest."""

from __future__ import annotations

from labkit.schedulers.pods import Partitioned
from reproductions.attention.placer import FILES, Attention, load

WEIGHTS = FILES, load


def attention(*, weights: str = "", pods: bool = True, forward: str = "most_free") -> Partitioned:
    """Return the scheduler `attention`.

    Parameters
    ----------
    weights : str
        A file of `python -m reproductions.attention`; "": the weights that come with it.
    pods, forward : bool, str
        As `labkit.schedulers.pods.Partitioned` takes them.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    load(weights)  # so that what cannot be read is refused here, and not in the run
    return Partitioned(Attention(weights), pods=pods, forward=forward)


def compile_kernels() -> None:
    """Train a little."""
    from labkit.learning.marl.settings import Setting
    from reproductions.attention.trainer import Recipe, Trainer

    setting = Setting(["single_switch(4, gbps=10)"], ["marl_jobs(load=1, n_slots=1, n_pods=1)"], "calibrated")
    Trainer(setting, recipe=Recipe(n_rounds=1, n_draws=2)).update()
