"""`labkit train-policy marl`: the trainer of the placement policy, from what is typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError, unknown

if TYPE_CHECKING:
    from labkit.learning.marl.trainer import Trainer


def marl_trainer(
    clusters: Sequence[str],
    traces: Sequence[str],
    *,
    interference: str,
    seed: int,
    options: dict[str, int | None],
    given: Sequence[str],
) -> Trainer:
    """Return a trainer of the placement policy.

    Parameters
    ----------
    options : dict
        `n_lessons`, `n_rounds`; None: as in `labkit.learning.marl.trainer.Recipe`.
    given : sequence of str
        Others of the recipe, each NAME=VALUE.

    Raises
    ------
    InputError
        If there is no such switch, its value cannot be, or a job of the traces fits no machine.
    """
    from labkit.learning.marl.settings import Setting
    from labkit.learning.marl.trainer import Recipe, Trainer

    plain = Recipe()
    values: dict[str, Any] = dict(_switch(text, plain) for text in given)
    values |= {name: value for name, value in options.items() if value is not None}
    setting = Setting(clusters, traces, interference)
    setting.refuse_unfit()
    return Trainer(setting, seed=seed, recipe=Recipe(**values))


def _switch(text: str, plain: object) -> tuple[str, Any]:
    """Return the name and the value of a switch of the recipe: "n_agents=4" -> "n_agents", 4."""
    name, _, value = text.partition("=")
    known = [field.name for field in fields(plain)]  # type: ignore[arg-type]
    if name not in known:
        raise unknown("switch of marl", name, known)
    default = getattr(plain, name)
    try:
        if isinstance(default, bool):
            return name, {"true": True, "false": False}[value.strip().lower()]
        made = type(default)(value)
    except (ValueError, KeyError):
        raise InputError(f"--set {text}: {value!r} cannot be; expected a value such as {default}.") from None
    if not made >= 0:
        raise InputError(f"--set {text}: expected a number >= 0, such as {default}.")
    return name, made
