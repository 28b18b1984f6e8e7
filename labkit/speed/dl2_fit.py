"""Fit smooth speeds to DL2's measurements again: `python -m labkit.speed.dl2_fit config_speed.txt [--write]`.

Non-negative least squares on relative times, model by model, over the gangs at which a speed > 0 was measured: the form
is that of `labkit.speed.dl2`. More terms (w p, p/w, w^2, 1/p^2, w/p^2) or a fit of logarithms with a loss that forgives
outliers make next to no difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.speed.dl2 import COEFFICIENTS, THETA, terms
from labkit.speed.measured import SpeedTable

HEADER: Final = """\
# Speeds of DL2's eight models by gang, as fitted by labkit to the measurements that DL2's authors published
# (config_speed.txt of the public repository pengyanghua/DL2, commit 2e54920; Peng et al., TPDS 2021): p parameter
# servers and w workers make 1 / (t0 M/w + t1 + t2 w/p + t3 w + t4 p + t5/p) updates of M samples (batch) per second.
# Errors are |fitted - measured| / measured over n_gangs gangs; held out: each number of workers in turn.
# Written by `python -m labkit.speed.dl2_fit config_speed.txt --write`.
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
    parser = argparse.ArgumentParser(prog="python -m labkit.speed.dl2_fit", description="Fit DL2's speeds again.")
    parser.add_argument("file", help="DL2's config_speed.txt; `labkit traces fetch dl2-speeds` prints where it is")
    parser.add_argument("--write", action="store_true", help=f"write {COEFFICIENTS.name} instead of printing it")
    given = parser.parse_args(arguments)
    text = HEADER + "\n".join(lines(SpeedTable.read(given.file))) + "\n"
    if given.write:
        COEFFICIENTS.write_text(text, "utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
