"""Resume from a checkpoint, or take its model: is it the same training, which losses came before."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.checkpoint.manifest import CHECKPOINTS, FILE, BadCheckpointError, Manifest, OtherModelError
from labkit.elastic.checkpoint.store import Checkpoints
from labkit.elastic.controller.losses import decoded
from labkit.elastic.protocol.blocks import unpack
from labkit.elastic.protocol.program import Spec

if TYPE_CHECKING:
    from torch import nn

    from labkit.elastic.checkpoint.store import Checkpoint
    from labkit.elastic.protocol.blocks import Layout
    from labkit.elastic.protocol.program import Spec


class NothingLeftError(InputError):
    """The newest checkpoint of a folder is that of the last step."""

    def __init__(self, message: str, *, saved: Checkpoint) -> None:
        super().__init__(message)
        self.saved = saved


_BEFORE = re.compile(r"(\d+)-events\.jsonl")


def stored_layout(folder: Path, cut: Layout) -> Layout:
    """Return the cut into blocks of the checkpoints of a folder if they are of this model; else `cut`.

    `folder`: of a job; it need not exist. `cut`: of a new job with the model.
    """
    for path in sorted((folder / CHECKPOINTS).glob(f"step-*/{FILE}"), reverse=True):
        with contextlib.suppress(BadCheckpointError, OSError):
            manifest = Manifest.from_json(path.read_bytes(), name=path.parent.name)
            kept = replace(manifest.cut(cut.params), n_buffers=cut.n_buffers)
            if manifest.step and kept.digest == manifest.layout:
                return kept
    return cut


def check_resume(folder: Path, spec: Spec, *, anyway: bool = False) -> list[str]:
    """Return allowed differences from the training that wrote the checkpoints of a folder; [] if there are none.

    Raise InputError if it is another training; NothingLeftError if its last step is done. `spec`: of the job that
    resumes. `anyway`: whether its steps may take other samples than before (synchronous training only).
    """
    checkpoints = spec.checkpoints(folder)
    if checkpoints.steps() in ([], [0]):  # no step has been done there: it starts with its own parameters
        return []
    try:
        saved = checkpoints.newest()
    except OtherModelError as error:
        raise OtherModelError(_explained(str(error), folder, spec)) from None
    if saved.step >= spec.n_steps:
        raise NothingLeftError(
            f"the newest checkpoint of {folder} is of step {saved.step} of {spec.n_steps}: there is nothing left to "
            "do; give more steps, or another folder.",
            saved=saved,
        )
    if (saved.queue is None) != spec.sync:
        was, requested = ("asynchronous", "sync=False") if spec.sync else ("synchronous", "sync=True")
        raise InputError(f"the checkpoints of {folder} are of {was} training: continue with {requested}, or elsewhere.")
    differs = _differences(saved, spec)
    if differs and not (anyway and spec.sync):
        remedy = "; " + 'resume="anyway" continues with other samples, some twice or never' if spec.sync else ""
        raise InputError(
            f"the checkpoints of {folder}, up to step {saved.step}, are of {' and '.join(differs)}: give the same, or "
            f"another folder{remedy}."
        )
    return differs


def _differences(saved: Checkpoint, spec: Spec) -> list[str]:
    known: Mapping[str, Any] = saved.training
    if saved.queue is not None:
        plan = saved.queue.plan
        known = {"n_samples": plan.n_samples, "batch": plan.base_shard, "seed": plan.seed, **known}
        known = {name: value for name, value in known.items() if name != "n_shards"}
    words = {"n_samples": "a dataset of {} samples (not {})"}
    return [
        words.get(name, name + "={} (not {})").format(known[name], given)
        for name, given in spec.training.items()
        if name in known and known[name] != given
    ]


def _explained(message: str, folder: Path, spec: Spec) -> str:
    """Return an error about another model, with the first parameter that differs if the former job's spec has it."""
    from labkit.elastic.protocol.program import SPEC, Spec

    with contextlib.suppress(OSError, ValueError, TypeError):
        before = Spec.load(folder)
        for old, new in zip_longest(before.params, spec.params):
            if _plain(old) != _plain(new):
                return f"{message.removesuffix('.')}: there {_shown(old)}, here {_shown(new)} ({folder / SPEC})."
    return message


def _plain(param: Any) -> Any:
    return None if param is None else [param[0], list(param[2])]


def _shown(param: Any) -> str:
    return "no more parameters" if param is None else f"'{param[0]}' {tuple(param[2])}"


def losses_before(folder: Path, *, step: int) -> dict[int, float]:
    """Return the losses, by step, that earlier jobs in a folder have reported before step `step`.

    A later job replaces all losses from the step on at which it began, also those that it has not reported.
    """
    losses: dict[int, float] = {}
    names = (_BEFORE.fullmatch(path.name) for path in folder.glob("*-events.jsonl"))
    for name in sorted((name for name in names if name), key=lambda name: int(name[1])):
        for event in _events(folder / name[0]):
            if event["event"] == "began":
                losses = {version: loss for version, loss in losses.items() if version < event["version"]}
            else:
                losses[int(event["version"])] = decoded(event["loss"])
    return {version: loss for version, loss in losses.items() if version < step}


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events with losses, or the start of training, of an event log; skip a last line that is cut off."""
    with contextlib.suppress(OSError), path.open() as file:
        for line in file:
            if '"event": "loss"' in line or '"event": "began"' in line:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


BEST: Final = "best"
"""Folder of the best state, in that of the job."""
SCORE: Final = "best.json"


@dataclass(slots=True)
class Score:
    """The best state so far."""

    metric: str
    """By which states are compared."""
    version: int = 0
    """Updates in the best state."""
    value: float | None = None
    """The metric of the best state; None: no state has a finite one."""
    values: dict[str, float] = field(default_factory=dict)
    """Loss and metrics of the best state."""
    n_worse: int = 0
    """Validations since."""


def read_score(folder: Path) -> Score | None:
    """Return the score of the best state that a job has left in its folder; None without one."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Score(**json.loads((folder / BEST / SCORE).read_text()))
    return None


def state_of(checkpoints: Checkpoints, version: int, model: nn.Module) -> nn.Module:
    """Return a copy of a model with the parameters of a checkpoint."""
    saved = checkpoints.load(version)
    loaded = copy.deepcopy(model)
    unpack(np.concatenate([saved.blocks[number].params for number in sorted(saved.blocks)]), loaded, checkpoints.layout)
    return loaded


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A state of the model."""

    version: int
    """Updates so far."""
    model: nn.Module
    """A copy of the model with its parameters."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Loss and metrics of its validation; empty for one that was not validated."""

    def state_dict(self) -> dict[str, Any]:
        """Return its parameters and buffers by name."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


def best_of(folder: Path, spec: Spec, model: nn.Module) -> SavedModel | None:
    """Return the best state in the folder of a job; None if no validation kept one."""
    score = read_score(folder)
    if score is None or score.value is None:
        return None
    kept = Checkpoints(folder / BEST, layout=spec.layout, optimizer=spec.checkpoints(folder).optimizer)
    return SavedModel(score.version, state_of(kept, score.version, model), score.values)
