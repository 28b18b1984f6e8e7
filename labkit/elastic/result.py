"""The result of a job that is over: the trained model, losses, events, and the costs of scalings and faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.checkpoint.resume import best_of, losses_before
from labkit.elastic.controller.job_files import records
from labkit.elastic.job_logs import last_text
from labkit.elastic.protocol.blocks import unpack
from labkit.elastic.protocol.program import Spec
from labkit.elastic.server.optimizers import TORCH
from labkit.elastic.server.update_rule import UpdateRule
from labkit.elastic.shards import ShardService

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


def rescued_in(events: Iterable[Mapping[str, Any]]) -> Path | None:
    """Return the folder of the last state if it could not be saved in that of the job."""
    folders = [event["folder"] for event in events if event["event"] == "rescued"]
    return Path(folders[-1]) if folders else None


class Result:
    """The result of a job, read from its folder.

    Parameters
    ----------
    folder : Path
        Folder of the job, which is over.
    model : Module
        Takes the parameters of the last step.
    events : sequence of dict
        Events of the job.

    Attributes
    ----------
    model : Module
        The trained model.
    version : int
        Updates in the saved state: all of them unless the job was stopped.
    digest : str
        Digest of all blocks, optimizer state included: equal training has equal digests, bit by bit.
    blocks : dict
        The last state, by number of the block.
    events : list of dict
        Events of the job in order.
    logs : dict of str
        What each member on this machine has printed, by name: the last 64 KB.
    best : SavedModel or None
        The best state by the validation of the job; None without one.
    ledger : tuple of Commit
        Of asynchronous training: the samples of each update, and the worker that made it; see
        `labkit.elastic.shards.prove`.
    """

    def __init__(self, folder: Path, model: nn.Module, events: Sequence[dict[str, Any]]) -> None:
        self.events = list(events)
        spec = Spec.load(folder)
        saved = spec.checkpoints(rescued_in(self.events) or folder).newest()
        self.model, self.logs = model, last_text(folder)
        self.version, self.digest, self.blocks = saved.step, saved.digest, saved.blocks
        began = next((e["version"] for e in self.events if e["event"] == "began"), 0)
        self._losses = losses_before(folder, step=began)
        self._losses.update((e["version"], e["loss"]) for e in self.events if e["event"] == "loss")
        self.ledger = () if spec.sync else tuple(ShardService.replay(records(folder)).ledger)
        self.best = best_of(folder, spec, model)
        vector = np.concatenate([saved.blocks[number].params for number in sorted(saved.blocks)])
        unpack(vector, self.model, spec.layout)
        self._cut = spec.layout
        self._updates = UpdateRule.load(folder).torch if spec.optimizer == TORCH else None

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and buffers of the trained model by name, as copies; `start(state=...)` takes them."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def load_optimizer(self, optimizer: Any, scheduler: Any = None) -> None:
        """Give an optimizer of torch over the model's parameters, and its scheduler, what they have after the job.

        `optimizer.state_dict()` then equals that of a plain torch loop, and `start(optimizer=...)` continues from it.
        Pass lists for optimizers that alternate.

        Raises
        ------
        InputError
            If the job had no optimizer of torch, or not as many.
        """
        from labkit.elastic.server.torch_optimizers import load_optimizers

        if self._updates is None:
            raise InputError("the job had no optimizer of torch; expected one that was given to it.")
        optimizers, schedulers = (
            list(given) if isinstance(given, list | tuple) else [given] * (given is not None)
            for given in (optimizer, scheduler)
        )
        load_optimizers(optimizers, schedulers, self._updates, self.model, self._cut, self.blocks, self.version)

    @property
    def losses(self) -> list[float]:
        """Mean loss of each step from `losses_from` on, steps of earlier jobs in the same folder included."""
        first = self.losses_from
        return [self._losses[step] for step in sorted(self._losses) if step >= first]

    @property
    def losses_from(self) -> int:
        """Step of the first of `losses`: 0, unless events of an earlier job are not in the folder any more."""
        return max((step for step in self._losses if step - 1 not in self._losses), default=0)

    @property
    def metrics(self) -> pd.DataFrame:
        """Loss, metrics beside it, and those of validations (`validation/loss`), by step: one column each."""
        import pandas as pd

        rows = [row for event in self.events for row in rows_of(event)]
        table = pd.DataFrame(rows, columns=["step", "seconds", "name", "value"])
        return table.pivot_table(index="step", columns="name", values="value", aggfunc="last")

    @property
    def steps(self) -> pd.DataFrame:
        """Seconds that each worker computed and waited in each step: `labkit.elastic.measure.steps`."""
        from labkit.elastic import measure

        return measure.steps(self.events)

    @property
    def scalings(self) -> pd.DataFrame:
        """Duration and cost of each scaling, in DL2's four steps: `labkit.elastic.measure.scalings`."""
        from labkit.elastic import measure

        return measure.scalings(self.events)

    @property
    def faults(self) -> pd.DataFrame:
        """Cost of each death of a process: `labkit.elastic.measure.faults`."""
        from labkit.elastic import measure

        return measure.faults(self.events)


BEFORE = "validation/"
"""Beginning of the names of what was measured by a validation."""


class LogRow(NamedTuple):
    """One number: of which step (updates done), when (seconds since 1970), its name, and its value."""

    step: int
    seconds: float
    name: str
    value: float


def rows_of(event: Mapping[str, Any]) -> Iterator[LogRow]:
    """Yield the numbers of an event of a job.

    >>> [*rows_of({"event": "loss", "version": 0, "time": 5.0, "loss": 0.5})]
    [LogRow(step=1, seconds=5.0, name='loss', value=0.5)]
    """
    kind = event["event"]
    if kind == "loss":
        yield LogRow(int(event["version"]) + 1, event["time"], "loss", event["loss"])
    elif kind in ("metrics", "validated"):
        step, before = (int(event["version"]), BEFORE) if kind == "validated" else (int(event["version"]) + 1, "")
        for name, value in event["values"].items():
            yield LogRow(step, event["time"], f"{before}{name}", value)
