"""Measurements of scalings: a model of any size with little computation, and a job that is scaled repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.elastic.job import Job
    from labkit.elastic.result import Result

COLUMNS: Final = 64
QUIET_STEPS: Final = 30
"""Steps before each scaling and after the last, to compare with."""


@dataclass(frozen=True)
class SyntheticRows:
    """A dataset: each sample is the number of a row of a table."""

    n_rows: int

    def __len__(self) -> int:
        return 4096

    def fetch(self, indices: Sequence[int]) -> Tensor:
        """Return numbers of rows, spread over the table."""
        import torch

        return torch.as_tensor([index * 7919 % self.n_rows for index in indices])


def table(mb: float) -> tuple[nn.Module, SyntheticRows, Callable[[nn.Module, Tensor], Tensor]]:
    """Return a model of `mb` MB, samples and a loss, as `start` takes them.

    The model is a table, of which a step reads a few rows. All of it is sent and updated in each step, as in any model,
    but computation takes only as long as clearing the gradients.
    """
    from torch import nn

    n_rows = round(mb * 1e6 / 4 / COLUMNS)
    if n_rows < 1:
        raise InputError(f"a table of {mb:g} MB has no row; expected at least {4 * COLUMNS / 1e6:g} MB.")
    model = nn.Embedding(n_rows, COLUMNS, sparse=True)
    nn.init.constant_(model.weight, 0.1)
    return model, SyntheticRows(n_rows), _loss


def _loss(model: nn.Module, rows: Tensor) -> Tensor:
    loss: Tensor = model(rows).square().mean()
    return loss


def trial(job: Job, plan: Iterable[Mapping[str, Any]], *, quiet_steps: int = QUIET_STEPS) -> Result:
    """Carry out scalings one after another with `quiet_steps` between them, stop the job, and return its result.

    Parameters
    ----------
    job : Job
        A job with more steps than the plan needs.
    plan : iterable of mapping
        Arguments of `Job.scale` for each scaling.
    quiet_steps : int
        Steps before each scaling, and after the last.

    Examples
    --------
    >>> from labkit.elastic import start
    >>> job = start(*table(10), steps=10_000, batch=8, shards=2, optimizer="momentum", lr=0.1)  # doctest: +SKIP
    >>> trial(job, [{"servers": 1}, {"servers": -1, "strategy": "suspend"}]).scalings  # doctest: +SKIP
    """
    todo, quiet, busy = list(plan), 0, False
    with job:
        for event in job.events():
            if event["event"] in ("scaled", "dropped"):
                quiet, busy = 0, False
            quiet += event["event"] == "loss"
            if quiet < quiet_steps or busy:
                continue
            if not todo:
                job.stop()
                break
            job.scale(**todo.pop(0))
            busy = True
        return job.wait()
