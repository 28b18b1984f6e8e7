"""`labkit train-policy marl --published`: switches from a command line, and the trainer that follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.core.errors import InputError
from reproductions.switches import read_switch

if TYPE_CHECKING:
    from reproductions.marl.trainer import Trainer


def published_trainer(
    clusters: Sequence[str],
    traces: Sequence[str],
    *,
    interference: str,
    seed: int,
    switches: Sequence[str],
    options: dict[str, int | None],
    slot_s: float = 1800.0,
) -> Trainer:
    """Return a trainer of MARL's own networks.

    Raise InputError if there is no such switch, its value cannot be, there are several clusters, or a trace is a file.

    Parameters
    ----------
    clusters, traces : sequence of str
        One cluster, whose pods are the schedulers, and generators of traces; each epoch draws one, with a seed of its
        own.
    interference : str
        How co-located jobs slow each other: a level by name, or a file.
    switches : sequence of str
        Switches of `reproductions.marl.Published`, each NAME=VALUE.
    options : dict
        `n_rounds`: epochs; `n_lessons`: nothing is imitated here. None: not given.
    """
    from reproductions.marl.switches import Published
    from reproductions.marl.trainer import Setting, Trainer

    if len(clusters) > 1:
        raise InputError(
            f"--cluster is given {len(clusters)} times; expected one: as published, networks are trained on a cluster."
        )
    if options.get("n_lessons") is not None:
        raise InputError("--lessons is given, and MARL as published imitates no teacher; expected --rounds alone.")
    values = dict(read_switch(one, Published(), what="switch of marl --published") for one in switches)
    if (rounds := options.get("n_rounds")) is not None:
        values["n_epochs"] = rounds
    setting = Setting(clusters[0], tuple(traces), interference)
    setting.refuse_unfit()
    return Trainer(setting, setting.built, setting.models(), slot_s=slot_s, seed=seed, switches=Published(**values))
