"""Measurements of scalings: a model of any size with little computation, and a job that is scaled repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack

from labkit.core.errors import InputError
from labkit.system.progress import counted

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

    from labkit.elastic.job import Job
    from labkit.elastic.options import JobOptions
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


def migration_steps(
    sizes_mb: Sequence[float], *, quiet_steps: int = 10, progress: bool = False, **options: Unpack[JobOptions]
) -> pd.DataFrame:  # fmt: skip
    """Add a server by suspension to a job of each size; return the rows of `Result.scalings` with the size as `mb`.

    Parameters
    ----------
    sizes_mb : sequence of float
        Sizes of the model.
    quiet_steps : int
        As `trial` takes it.
    progress : bool
        Show a bar.
    **options
        Of `labkit.elastic.start`: steps, batch, shards, optimizer, lr, ...
    """
    import pandas as pd

    from labkit.elastic.job_start import start

    rows = []
    for mb in counted(sizes_mb, name="sizes", unit="job", shown=progress):
        done = trial(start(*table(mb), **options), [{"servers": 1, "strategy": "suspend"}], quiet_steps=quiet_steps)
        rows.append(done.scalings.assign(mb=mb))
    return pd.concat(rows, ignore_index=True)


def compare_modes(
    build: Callable[[], nn.Module], runs: Sequence[tuple[str, int]], *, after: int = 20, progress: bool = False,
    **options: Unpack[JobOptions],
) -> pd.DataFrame:  # fmt: skip
    """Train the same model synchronously and asynchronously, with several numbers of workers.

    Parameters
    ----------
    build : callable
        Returns the model as it is before training.
    runs : sequence of (str, int)
        "sync" or "async", and the number of workers; there is one server.
    after : int
        Losses before this step count for nothing.
    progress : bool
        Show a bar.
    **options
        Of `labkit.elastic.train`.

    Returns
    -------
    DataFrame
        mode, workers, staleness (updates by others between pull and push, mean; 0 if synchronous), loss (mean).
    """
    import pandas as pd

    from labkit.elastic.own_training import train

    rows = []
    for mode, workers in counted(runs, name="modes", shown=progress):
        chosen: JobOptions = {**options, "workers": workers, "servers": 1, "sync": mode == "sync"}
        done = train(build(), **chosen)
        losses = pd.DataFrame([event for event in done.events if event["event"] == "loss"])
        staleness = float(losses["staleness"].mean()) if mode == "async" else 0.0
        rows.append((mode, workers, staleness, float(losses["loss"][after:].mean())))
    return pd.DataFrame(rows, columns=["mode", "workers", "staleness", "loss"])
