"""Schedulers that did the very same: where nothing has to wait, none can be better than another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from labkit.core.text import none_told
from labkit.results.bound import BOUND_LABEL
from labkit.results.sweeps import keys_of, pairs_called

if TYPE_CHECKING:
    import pandas as pd

OUTCOMES: Final = ("mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s")
"""What two schedulers must have in common to count as the same; how often they were asked does not count."""


def alike(table: pd.DataFrame) -> list[str]:
    """Return a note for each setting of a sweep in which all schedulers had identical results on every seed.

    Parameters
    ----------
    table : DataFrame
        From `labkit.sweep` or `labkit.results.read_sweep`.
    """
    table = table[table["scheduler"] != BOUND_LABEL]
    known = [name for name in OUTCOMES if name in table]
    setting = [key for key in keys_of(table) if key not in ("seed", "scheduler") and len(set(table[key])) > 1]
    if not known:
        return []
    parts = [((), table)] if not setting else list(table.groupby(setting, sort=False, dropna=False))
    same = [(dict(zip(setting, keys, strict=True)), part) for keys, part in parts if _same(part, known)]
    if len(same) == len(parts):
        same = [({}, table)] if same else []
    return [_note(part, told) for told, part in same]


def _same(part: pd.DataFrame, known: list[str]) -> bool:
    """Return whether there are two schedulers at least, and all have the same numbers on each seed."""
    if len(set(part["scheduler"])) < 2 or (part["error"] != "").any() or part[known].isna().to_numpy().any():
        return False
    return len(part.drop_duplicates(["seed", *known])) == len(set(part["seed"]))


def _note(part: pd.DataFrame, setting: dict[str, object]) -> str:
    names = ", ".join(dict.fromkeys(part["scheduler"]))
    where = " with " + ", ".join(f"{key} {none_told(value)}" for key, value in setting.items()) if setting else ""
    queued_s = part["mean_queueing_s"] if "mean_queueing_s" in part else part["mean_jct_s"]
    told = f"{names} gave identical results on every {pairs_called(part)}{where}"
    if (queued_s > 0).any():
        return told
    return f"{told} (no job ever waited): more load (--load, --set load=2) or a smaller cluster would tell them apart"
