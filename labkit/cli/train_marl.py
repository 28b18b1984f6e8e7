"""`labkit train-policy marl`: the trainer of the placement policy, from what is typed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    client: Any = None,
) -> Trainer:
    """Return a trainer of the placement policy.

    Raise InputError if there is no such switch, its value cannot be, or a job of the traces fits no machine.

    Parameters
    ----------
    options : dict
        `n_lessons`, `n_rounds`; None: as in `labkit.learning.marl.trainer.Recipe`.
    given : sequence of str
        Others of the recipe, each NAME=VALUE; `shared=False` is a head for each pod, `n_agents` of them.
    client : Client, optional
        Of a Dask cluster, which plays traces.
    """
    from labkit.learning.marl.settings import Setting
    from labkit.learning.marl.trainer import Recipe, Trainer

    plain = Recipe()
    shared, rest = _shared(given)
    values: dict[str, Any] = dict(_switch(text, plain) for text in rest)
    values |= {name: value for name, value in options.items() if value is not None}
    setting = Setting(clusters, traces, interference)
    setting.refuse_unfit()
    if not shared:
        values.setdefault("n_agents", setting.n_pods)
    return Trainer(setting, seed=seed, recipe=Recipe(**values), where=client)


@contextmanager
def lent_marl_trainer(
    clusters: Sequence[str], traces: Sequence[str], *, dask: str | None, **options: Any
) -> Iterator[Trainer]:
    """Lend what `marl_trainer` returns, which plays traces on a Dask cluster if one is asked for."""
    from labkit.experiment.on_dask import connect

    with connect(dask) as client:
        yield marl_trainer(clusters, traces, client=client, **options)


def _shared(given: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether all pods share weights, and the other switches.

    >>> _shared(["shared=False", "n_draws=8"])
    (False, ['n_draws=8'])
    """
    named = [text.partition("=")[2].strip().lower() for text in given if text.partition("=")[0].strip() == "shared"]
    if any(value not in ("true", "false") for value in named):
        raise InputError(f"--set shared={named[-1]}: expected True (one head for all pods) or False (one for each).")
    return "false" not in named[-1:], [text for text in given if text.partition("=")[0].strip() != "shared"]


def _switch(text: str, plain: object) -> tuple[str, Any]:
    """Return the name and the value of a switch of the recipe: "n_agents=4" -> "n_agents", 4."""
    name, _, value = text.partition("=")
    known = [field.name for field in fields(plain)]  # type: ignore[arg-type]
    if name not in known:
        raise unknown("switch of marl", name, [*known, "shared"])
    default = getattr(plain, name)
    try:
        if isinstance(default, bool):
            return name, {"true": True, "false": False}[value.strip().lower()]
        made = type(default)(value)
    except (ValueError, KeyError):
        raise InputError(f"--set {text}: {value!r} is not a valid value; expected one such as {default}.") from None
    if not made >= 0:
        raise InputError(f"--set {text}: expected a number >= 0, such as {default}.")
    return name, made
