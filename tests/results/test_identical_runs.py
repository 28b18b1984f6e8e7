"""Schedulers that did the very same: the note under the table of seeds."""

from __future__ import annotations

import pandas as pd

from labkit.results.conclusion import identical_runs


def table(*rows):
    """Return a sweep of (load, scheduler, seed, mean JCT) without an error."""
    made = pd.DataFrame(rows, columns=["load", "scheduler", "seed", "mean_jct_s"])
    made.insert(3, "error", "")
    made.insert(4, "run", "")
    return made.assign(mean_queueing_s=0.0)


SAME = [(1, "fifo", 0, 5.0), (1, "srtf", 0, 5.0), (1, "fifo", 1, 7.0), (1, "srtf", 1, 7.0)]


def test_schedulers_under_which_no_job_waits_are_told_to_be_the_same():
    (note,) = identical_runs(table(*SAME))
    assert note.startswith(
        "fifo, srtf gave identical results on every seed (no job ever waited); raise the arrival rate"
    )


def test_a_setting_in_which_they_differ_is_not_told():
    differs = [(2, "fifo", 0, 5.0), (2, "srtf", 0, 4.0)]
    (note,) = identical_runs(table(*SAME, *differs))
    assert " on every seed with load 1 (no job ever waited)" in note
    assert identical_runs(table(*differs)) == []
