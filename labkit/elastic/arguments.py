"""Checks of the arguments of a job, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError
from labkit.elastic.controller.losses import CONTINUE, STOP
from labkit.elastic.forkserver.protocol import ForkError, Settings
from labkit.elastic.models.sizes import whole
from labkit.elastic.process.limits import check_choice
from labkit.elastic.proof import OFF, REFUSE, TELL
from labkit.elastic.protocol.blocks import BLOCKS, MOST_BLOCKS, TENSOR, Layout
from labkit.elastic.protocol.program import BF16, FLOAT32, FP16
from labkit.elastic.server.optimizers import OPTIMIZERS, OWN, OwnUpdate, optimizer
from labkit.elastic.server.update_rule import UpdateRule
from labkit.elastic.transport import Lease

if TYPE_CHECKING:
    from torch import nn


EXACT, ANYWAY = "exact", "anyway"
"""Whether a job may go on from the checkpoint of another training."""


def checked_counts(**counts: Any) -> list[int]:
    """Return whole numbers as `int`, in the order given; InputError if one is no whole number."""
    return [whole(name, value, least=-(2**63)) for name, value in counts.items()]


def check_sizes(cut: Layout, *, steps: int, save_every: int, servers: int, workers: int) -> None:
    """Raise InputError unless the numbers of a job are in range, and it has a block for each server."""
    if save_every < 0:
        raise InputError(
            f"save_every is {save_every}; expected steps between two checkpoints, or 0 for the last state alone."
        )
    if steps < 1:
        raise InputError(f"a job of {steps} steps; expected at least one.")
    if cut.n_blocks > MOST_BLOCKS:
        raise InputError(
            f"{cut.n} numbers in {cut.n_blocks} blocks of parameters; expected at most {MOST_BLOCKS} blocks: "
            "train fewer parameters (requires_grad_(False))."
        )
    if servers > cut.n_blocks:
        raise InputError(
            f"{servers} servers for {cut.n_blocks} blocks of parameters; expected at most one per block. Checkpoints "
            "of a folder keep the blocks that they were begun with (most_servers)."
        )
    if servers < 1 or workers < 1:
        raise InputError(f"a job with {servers} servers and {workers} workers; expected at least one of each.")


def check_seconds(*, lease_s: Any, loads_every_s: Any = 0.0, measure_every_s: Any = 0.0, **seconds: Any) -> None:
    """Raise InputError unless all are finite seconds above 0 (events: or 0), and `lease_s` is valid for a `Lease`."""
    rates = {"loads_every_s": loads_every_s, "measure_every_s": measure_every_s}
    seconds.update({name: value for name, value in rates.items() if value})
    for name, value in {"lease_s": lease_s, **seconds}.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not isfinite(value) or not value > 0:
            raise InputError(f"{name} is {value!r}; expected seconds above 0.")
    Lease(lease_s)


def check_variables() -> None:
    """Raise InputError where an environment variable that jobs read has an invalid value."""
    try:
        Settings.read(os.environ)
    except ForkError as error:
        raise InputError(str(error)) from None
    check_choice()


def check_detached(detached: Any, *, folder: Path | None, validate: Any) -> None:
    """Raise InputError unless a job may go on without the process that starts it."""
    if not isinstance(detached, bool):
        raise InputError(f"detached is {detached!r}; expected True or False.")
    if detached and folder is None:
        raise InputError("detached=True without a folder; expected one, by which attach(folder) finds the job.")
    if detached and validate is not None:
        raise InputError("detached=True with validate=...; the process that starts a job validates it. Leave one out.")


def check_words(
    *, on_nan: Any, resume: Any, partition: Any = BLOCKS, precision: Any = FLOAT32, proof: Any = REFUSE
) -> None:
    """Raise InputError for an unknown value of `on_nan`, `resume`, `partition`, `precision` or `proof`."""
    if precision == "float64":
        raise InputError(
            "precision is 'float64'; expected 'float32', 'bf16' or 'fp16': frames, shared memory, update kernels and "
            "checkpoints have numbers of four bytes. model.float(), and data of float32."
        )
    for name, value, known in (
        ("on_nan", on_nan, (STOP, CONTINUE)), ("resume", resume, (EXACT, ANYWAY)),
        ("partition", partition, (BLOCKS, TENSOR)), ("precision", precision, (FLOAT32, BF16, FP16)),
        ("proof", proof, (REFUSE, TELL, OFF)),
    ):  # fmt: skip
        if value not in known:
            raise InputError(f"{name} is {value!r}; expected {' or '.join(map(repr, known))}.")


def check_optimizer(name: Any, options: Mapping[str, Any], *, arguments: Iterable[str]) -> None:
    """Raise InputError unless there is such an optimizer, and it has such options.

    `options`: arguments of `start` by name that are none of its own. `arguments`: names of the arguments of `start`: an
    option may be one of them, misspelt.
    """
    if not isinstance(name, str):
        kind = name if isinstance(name, type) else type(name)
        raise InputError(
            f"optimizer is {kind.__module__}.{kind.__qualname__}; expected one of {', '.join(OPTIMIZERS)}, and its "
            "options by name (lr=0.1); an optimizer of torch over the model's parameters, or a function of the model."
        )
    if name.lower() == "adamw":
        raise InputError("unknown optimizer 'adamw'; it is optimizer='adam' with decoupled_weight_decay=True here.")
    known = [field.name for field in fields(OPTIMIZERS[name])] if name in OPTIMIZERS else []
    for option in options:
        if known and option not in known:
            near = get_close_matches(option.lower(), [*arguments, *known], n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            message = f"start has no argument '{option}', nor {name} such an option."
            raise InputError(f"{message}{hint} Options of {name}: {', '.join(sorted(known))}.")
    optimizer(name, **options)


def checked_update(
    chosen: Any, options: Mapping[str, Any], *, rule: UpdateRule, n_steps: int, arguments: Iterable[str]
) -> tuple[str, dict[str, Any]]:
    """Return name and options of an optimizer that can be used, with what is added to it.

    Raise InputError if one of them is invalid.
    """
    rule.check(n_steps=n_steps)
    if rule.torch is not None:
        if options:
            raise InputError(
                f"{sorted(options)[0]} beside an optimizer of torch; expected such options in the optimizer."
            )
        return rule.torch.described.name, rule.torch.described.options
    if not isinstance(chosen, OwnUpdate):
        check_optimizer(chosen, options, arguments=arguments)
        return chosen, dict(options)
    if set(options) != {"lr"}:
        extra = sorted(set(options) - {"lr"})
        message = f"an update of one's own has no option '{extra[0]}'" if extra else "an update of one's own needs lr"
        raise InputError(f"{message}; expected lr=0.1, say, and nothing else: what it needs goes into its function.")
    lr = options["lr"]
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not (isfinite(lr) and lr >= 0):
        raise InputError(f"lr is {lr!r}; expected a number, 0 or more.")
    return OWN, {**chosen.options, "lr": lr}


def checked_clip(clip_norm: Any) -> float:
    """Return the limit of the norm of the whole gradient; 0: none."""
    if clip_norm is None:
        return 0.0
    number = isinstance(clip_norm, int | float) and not isinstance(clip_norm, bool)
    if not (number and isfinite(clip_norm) and clip_norm > 0):
        raise InputError(f"clip_norm is {clip_norm!r}; expected a number above 0, or None.")
    return float(clip_norm)


def checked_folder(folder: Any) -> Path | None:
    """Return a folder as an absolute path, with `~` of a text expanded; InputError if it is no path."""
    if folder is None:
        return None
    if isinstance(folder, Path):
        return folder.absolute()
    if isinstance(folder, str | os.PathLike) and str(folder):
        return Path(folder).expanduser().absolute()
    raise InputError(f"folder is {folder!r}; expected a path.")


def load_state(model: nn.Module | Any, state: Mapping[str, Any] | Any) -> None:
    """Load a `state_dict` into a model.

    Raise InputError if it lacks a parameter or buffer of the model, has one more, or one of another shape; the model is
    unchanged then.
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        return  # `check_model` says so
    if not isinstance(state, Mapping):
        kind = f"the path {str(state)!r}" if isinstance(state, str) else f"a {type(state).__name__}"
        raise InputError(f"state is {kind}; expected a state_dict: model.state_dict(), or torch.load(path).")
    known = model.state_dict()
    _check_names(known, state)
    _check_shapes(known, state)
    model.load_state_dict(state)


def _check_names(known: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for name in known:
        if name not in state:
            raise InputError(f"state has no '{name}', which the model has.{_prefix_hint(name, state)}")
    for name in state:
        if name not in known:
            raise InputError(f"state has '{name}', which the model has not; expected {len(known)} names of the model.")


def _check_shapes(known: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for name, tensor in known.items():
        shape, state_shape = getattr(tensor, "shape", None), getattr(state[name], "shape", None)
        if shape != state_shape:
            actual = "nothing with a shape" if state_shape is None else f"of shape {tuple(state_shape)}"
            raise InputError(f"'{name}' of state is {actual}; expected {tuple(shape or ())}, as in the model.")


def _prefix_hint(name: str, state: Mapping[str, Any]) -> str:
    """Return the remedy if all names have a prefix that wrappers add."""
    for prefix in ("module.", "_orig_mod."):
        if prefix + name in state:
            return f" It has '{prefix}{name}': save the model inside its wrapper, or cut '{prefix}' off the names."
    return ""
