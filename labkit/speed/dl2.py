"""Speeds of DL2's eight models from functions that were fitted to its measurements: what a clean clone has.

The measurements themselves are the authors' and come without a licence, so they are not shipped; `labkit traces fetch
dl2-speeds` downloads them. `dl2_fit.csv` beside this file holds our own fit; `python -m labkit.speed.dl2 FILE`
prints it again.

An update of M samples on p parameter servers and w workers takes t0 M/w + t1 + t2 w/p + t3 w + t4 p + t5/p seconds.
That is Optimus' synchronous form (`labkit.speed.optimus`) and one term more, what a server does with its part of the
model for each update, however many workers there are. Without it, gangs of at most 4 + 4 tasks are wrong by 21% in
the mean (one server with one worker by up to 109%), with it by 7%.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.resources import Floats, Ints
from labkit.speed.measured import OfModels, SpeedTable

COEFFICIENTS: Final = Path(__file__).with_name("dl2_fit.csv")
THETA: Final = ("t0", "t1", "t2", "t3", "t4", "t5")


def terms(n_ps: ArrayLike, n_workers: ArrayLike, *, batch: float) -> Floats:
    """Return the terms of some gangs' seconds per update, (..., 6), which `THETA` weighs."""
    p, w = np.broadcast_arrays(np.asarray(n_ps, np.float64), np.asarray(n_workers, np.float64))
    return np.stack([batch / w, np.ones_like(w), w / p, w, p, 1 / p], axis=-1)


@dataclass(frozen=True, eq=False)
class FittedTable(OfModels):
    """Speeds of K models by gang as smooth functions; a `MeasuredSpeed` takes it in place of a `SpeedTable`.

    It has neither the noise of measurements nor the gangs at which they failed.

    Attributes
    ----------
    models : tuple of str
        (K,) names.
    theta : array
        (K, 6) coefficients >= 0 of the seconds of an update.
    batch : array
        (K,) samples in a parameter update.
    median_error, max_error : array
        (K,) of |fitted - measured| / measured, over the gangs that were measured.
    held_out_error : array
        (K,) the median of it over gangs whose number of workers had no part in the fit.
    """

    called = "model of DL2's fitted speeds"
    models: tuple[str, ...]
    theta: Floats
    batch: Floats
    median_error: Floats
    max_error: Floats
    held_out_error: Floats

    @property
    def in_words(self) -> str:
        """What it is, for headers of runs."""
        least, most = 100 * self.median_error.min(), 100 * self.median_error.max()
        return f"a smooth model fitted to DL2's measurements (median error {least:.0f} to {most:.0f}% by model)"

    def grid(self, model: str, *, max_ps: int, max_workers: int, clip: bool = False) -> Floats:  # noqa: ARG002
        """Return samples/s at every gang, (max_ps + 1, max_workers + 1); 0 without PS or without workers.

        None is negative, so there is nothing to `clip`.
        """
        k, grid = self.code(model), np.zeros((max_ps + 1, max_workers + 1))
        n_ps, n_workers = np.arange(1, max_ps + 1)[:, None], np.arange(1, max_workers + 1)[None, :]
        grid[1:, 1:] = self.batch[k] / (terms(n_ps, n_workers, batch=float(self.batch[k])) @ self.theta[k])
        return grid


@lru_cache(maxsize=1)
def fitted() -> FittedTable:
    """Return the fitted speeds that ship.

    >>> table = fitted()
    >>> table.models[:2]
    ('resnet-50', 'vgg-16')
    >>> table.grid("resnet-50", max_ps=4, max_workers=4)[[1, 4], [1, 4]].round(1)  # 15.8 and 34.9 were measured
    array([19.5, 33.7])
    """
    with COEFFICIENTS.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    column = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name != "model"}
    return FittedTable(
        models=tuple(row["model"] for row in rows),
        theta=np.stack([column[t] for t in THETA], axis=1),
        batch=column["batch"],
        median_error=column["median_error"],
        max_error=column["max_error"],
        held_out_error=column["held_out_error"],
    )


HEADER: Final = """\
# Speeds of DL2's eight models by gang, as fitted by labkit to the measurements that DL2's authors published
# (config_speed.txt of the public repository pengyanghua/DL2, commit 2e54920; Peng et al., TPDS 2021): p parameter
# servers and w workers make 1 / (t0 M/w + t1 + t2 w/p + t3 w + t4 p + t5/p) updates of M samples (batch) per second.
# Errors are |fitted - measured| / measured over n_gangs gangs; held out: each number of workers in turn.
# Written by `python -m labkit.speed.dl2 config_speed.txt --write`.
"""
COLUMNS: Final = ("model", "batch", "n_gangs", *THETA, "median_error", "max_error", "held_out_error")


def lines(table: SpeedTable) -> Iterator[str]:
    """Return the lines of the CSV that ships, from what was measured."""
    yield ",".join(COLUMNS)
    for model in table.models:
        n_ps, n_workers, samples_per_s = table.rows(model)
        batch = float(table.batch[table.code(model)])
        there = samples_per_s > 0
        seconds, gangs = batch / samples_per_s[there], terms(n_ps[there], n_workers[there], batch=batch)
        theta = fit(gangs, seconds)
        error = relative_errors(theta, gangs, seconds)
        held_out = held_out_errors(gangs, seconds, group=n_workers[there])
        figures = [*theta, np.median(error), error.max(), np.median(held_out)]
        yield ",".join([model, f"{batch:g}", str(len(seconds)), *(f"{figure:.4g}" for figure in figures)])


def fit(gangs: Floats, seconds: Floats) -> Floats:
    """Return the coefficients >= 0 that make the seconds of n gangs from their terms (n, 6), (6,)."""
    from scipy.optimize import nnls

    theta: Floats = nnls(gangs / seconds[:, None], np.ones(len(seconds)))[0]  # relative: rows @ theta = 1
    return theta


def relative_errors(theta: Floats, gangs: Floats, seconds: Floats) -> Floats:
    """Return |fitted - measured| / measured of the speeds of n gangs, (n,)."""
    errors: Floats = np.abs(seconds / (gangs @ theta) - 1)
    return errors


def held_out_errors(gangs: Floats, seconds: Floats, *, group: Ints) -> Floats:
    """Return the relative errors of each group of gangs by a fit to the others, (n,)."""
    errors = np.full(len(seconds), np.nan)
    for each in np.unique(group):
        out = group == each
        errors[out] = relative_errors(fit(gangs[~out], seconds[~out]), gangs[out], seconds[out])
    return errors


def main(arguments: list[str] | None = None) -> None:
    """Print the fit, or write the file that ships."""
    parser = argparse.ArgumentParser(prog="python -m labkit.speed.dl2", description="Fit DL2's speeds again.")
    parser.add_argument("file", help="DL2's config_speed.txt; `labkit traces fetch dl2-speeds` prints where it is")
    parser.add_argument("--write", action="store_true", help=f"write {COEFFICIENTS.name} instead of printing it")
    options = parser.parse_args(arguments)
    text = HEADER + "\n".join(lines(SpeedTable.read(options.file))) + "\n"
    if options.write:
        COEFFICIENTS.write_text(text, "utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
