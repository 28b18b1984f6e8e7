"""`labkit train-policy marl --published`: switches from a command line, and the trainer that follows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError, unknown

if TYPE_CHECKING:
    from reproductions.marl.trainer import Trainer


def published_trainer(
    clusters: Sequence[str],
    traces: Sequence[str],
    *,
    interference: str,
    seed: int,
    given: Sequence[str],
    options: dict[str, int | None],
    slot_s: float = 1800.0,
) -> Trainer:
    """Return a trainer of MARL's own networks.

    Parameters
    ----------
    clusters, traces : sequence of str
        One cluster, whose pods are the schedulers, and generators of traces; each epoch draws one, with a seed of its
        own.
    interference : str
        How co-located jobs slow each other: a level by name, or a file.
    given : sequence of str
        Switches of `reproductions.marl.Published`, each NAME=VALUE.
    options : dict
        `n_rounds`: epochs; `n_lessons`: nothing is imitated here. None: not given.

    Raises
    ------
    InputError
        If there is no such switch, its value cannot be, there are several clusters, or a trace is a file.
    """
    from reproductions.marl.switches import Published
    from reproductions.marl.trainer import Setting, Trainer

    if len(clusters) > 1:
        raise InputError(
            f"--cluster is given {len(clusters)} times; expected one: as published, networks are trained on a cluster."
        )
    if options.get("n_lessons") is not None:
        raise InputError("--lessons is given, and MARL as published imitates no teacher; expected --rounds alone.")
    values = dict(_switch(one) for one in given)
    if (rounds := options.get("n_rounds")) is not None:
        values["n_epochs"] = rounds
    switches, setting = Published(**values), Setting(clusters[0], tuple(traces), interference)
    setting.refuse_unfit()
    return Trainer(setting, setting.built, setting.models(), slot_s=slot_s, seed=seed, switches=switches)


def _switch(text: str) -> tuple[str, Any]:
    """Return the name and the value of a switch: "level=server" -> "level", "server"."""
    from reproductions.marl.switches import Published

    name, equals, value = text.partition("=")
    plain = Published()
    known = {field.name: getattr(plain, field.name) for field in fields(Published)}
    name, value = name.strip().replace("-", "_"), value.strip()
    if name not in known:
        raise unknown("switch of marl --published", name, sorted(known))
    default = known[name]
    if not equals:
        raise InputError(f"--set {text} has no value; expected NAME=VALUE, e.g. {name}={default}.")
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise InputError(f"--set {name} is {value!r}; expected True or False.")
        return name, value.lower() == "true"
    try:
        return name, type(default)(value)
    except ValueError:
        expected = "a whole number" if isinstance(default, int) else "a number"
        raise InputError(f"--set {name} is {value!r}; expected {expected}.") from None
