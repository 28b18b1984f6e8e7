"""`labkit compare --seeds`: paired differences, what they show, and runs that are kept when others fail."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit.core.text import human_s
from labkit.experiment import compare
from labkit.results import load
from labkit.results.comparison import bound_jct_s
from labkit.results.conclusion import conclusion, finding, summarize_seeds
from labkit.results.sweeps import comparison, sweep_differences
from tests.command import labkit
from tests.plots.runs import record, records

TRACE = "poisson(12, per_hour=60, median_s=600, mean_s=700)"
SLUG = "poisson-12--per_hour-60--median_s-600--mean_s-700--seed"
PLAIN = (TRACE, "--cluster", "no_network(1)", "--workers", "0")
BROKEN = "class Broken:\n    def schedule(self, snapshot):\n        raise RuntimeError('no idea')\n"


def table(**by_scheduler: list[float]) -> pd.DataFrame:
    """Return a sweep of one setting: a row per scheduler and seed."""
    rows = [
        {"trace": "t", "cluster": "c", "scheduler": name, "seed": seed, "error": "" if value == value else "X: no",
         "run": "", "mean_jct_s": value, "bound_jct_s": np.nan, "cpu_s": 1.0, "wall_s": 1.0}
        for name, values in by_scheduler.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_seeds_are_compared_in_pairs_with_a_conclusion_a_report_and_runs_that_stay(tmp_path):
    words = ("--schedulers", "fifo,srtf", "--seeds", "3", "--runs", "kept", "--report", "r.html")
    done = labkit("compare", *PLAIN, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 of 3" in done.stdout
    assert "On 3 seeds srtf has the lowest mean JCT" in done.stdout
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        f"{name}-{SLUG}-{seed}-{seed}" for name in ("fifo", "srtf") for seed in range(3)
    ]  # as of a single run: scheduler, trace and seed
    assert load(f"srtf-{SLUG}-2-2", runs=tmp_path / "kept").info.seed == 2
    page = (tmp_path / "r.html").read_text()
    assert "On 3 seeds srtf has the lowest mean JCT" in page
    assert "Difference to fifo on the same seeds" in page


def test_a_scheduler_that_fails_leaves_the_others_results_and_the_exit_code_is_1(tmp_path):
    (tmp_path / "mine.py").write_text(BROKEN)
    words = ("--schedulers", "fifo,mine=mine.py:Broken,srtf", "--seeds", "2", "--json", "--against", "srtf")
    done = labkit("compare", *PLAIN, *words, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    told = {row["scheduler"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert told["fifo"]["n"] == 2
    assert (told["mine"]["n"], told["mine"]["n_failed"]) == (0, 2)
    assert told["fifo"]["n_pairs"] == 2
    assert told["(bound)"]["n_lower"] is None
    said = done.stderr.splitlines()[0]
    assert said.startswith("labkit: failed: scheduler mine, seed 0: RuntimeError: no idea (mine.py:3, decision 0, at ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["DEMO", "--seeds", "3"], "the 3 seeds have no effect"),
        ([TRACE, "--seeds", "none"], "--seeds is 'none'; expected how many (5), a range (5-9) or a list (1,4,9)."),
        ([TRACE, "--seeds", "2", "--against", "srft"], "unknown scheduler to compare --against 'srft'. Did you mean"),
        ([TRACE, "--workers", "2"], "--workers goes with --seeds N or --windows N."),
        ([TRACE, "--against", "srft"], "unknown scheduler to compare --against 'srft'. Did you mean"),
    ],
)
def test_what_seeds_cannot_be_is_told_in_one_line(words, told, tmp_path):
    demo = str(Path(__file__).parents[2] / "traces" / "demo.csv")
    words = [demo if word == "DEMO" else word for word in words]
    done = labkit("compare", *words, "--cluster", "demo", "--schedulers", "fifo,srtf", cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_lower_on_counts_the_seeds_that_both_have():
    found = sweep_differences(table(fifo=[10, 20, 30, 40], srtf=[9, 21, 28, np.nan]), base="fifo")
    assert found[["n", "n_lower"]].to_numpy().tolist() == [[3, 2]]
    both = comparison(table(fifo=[10, 20], srtf=[9, 18]), base="fifo")
    assert both["n_lower"].fillna(-1).tolist() == [-1, 2]


def test_a_difference_is_concluded_only_where_its_interval_leaves_out_zero():
    clear = summarize_seeds(table(fifo=[100, 210, 290, 400], srtf=[80, 191, 268, 381]))
    assert clear[0].startswith("On 4 seeds srtf has the lowest mean JCT: 230 s (95%: ")
    assert "fifo +8.7%" in clear[1]
    assert "higher on 4 of 4" in clear[1]
    near = summarize_seeds(table(fifo=[100, 210, 290, 400], las=[90, 215, 280, 410]))
    assert len(near) == 2
    assert near[1].startswith("Not significantly different from las on these seeds: fifo (+0.5%, ")
    assert "one seed, so no confidence interval" in summarize_seeds(table(fifo=[100], las=[90]))[1]
    failed = summarize_seeds(table(fifo=[100, 110], las=[90, np.nan]))
    assert failed[-1] == "Not compared because some of its runs failed: las."
    assert not any("las" in sentence for sentence in failed[:-1])


def test_seeds_that_all_gave_the_same_have_no_intervals():
    same = table(fifo=[100, 100, 100], las=[90, 90, 90])
    (told,) = summarize_seeds(same)
    assert told.startswith("All 3 seeds gave the same numbers, since nothing in the trace or the schedulers is random")
    both = comparison(same, base="fifo")
    assert both["mean"].tolist() == [100, 90]
    assert both[["low", "high", "relative_low", "relative_high", "n_pairs"]].isna().all(axis=None)
    assert comparison(table(fifo=[100, 100], las=[90, 91]), base="fifo")["low"].notna().all()


def test_other_seeds_are_recommended_only_for_a_trace_that_has_some():
    made, read = (
        [replace(each, info=replace(each.info, trace=trace)) for each in records()]
        for trace in ("poisson(80, per_hour=12) seed 0", "my.csv")
    )
    assert conclusion(made)[1].endswith("Repeat it with --seeds 10.")
    assert conclusion(read)[1].endswith("Repeat it with --windows 10, or on a trace from another period.")


def test_one_run_of_each_concludes_nothing_about_other_traces():
    told = conclusion(records())
    best = min(records(), key=lambda run: run.summary["mean_jct_s"])
    assert told[0].startswith(f"On this trace {best.info.scheduler} has the lowest mean JCT")
    assert re.search(r"; \d+ of 40 jobs are done sooner than with \w+, \d+ later\.$", told[0])
    assert told[1].startswith(
        "Each scheduler ran once, so this does not show whether the difference holds for other traces"
    )
    assert conclusion([record("fifo")]) == [f"fifo: the mean JCT of 40 jobs is {_mean()}."]
    assert conclusion([record("fifo", n=3, until_s=1.0)]) == [
        "Not compared because not all of its jobs completed: fifo."
    ]


def test_single_runs_are_compared_with_the_one_that_is_named():
    (told,) = [said for said in conclusion(records(), base="drf") if said.startswith("Against drf: ")]
    assert told.count("mean JCT") == len(records()) - 1
    assert re.search(r"fifo mean JCT [+-][\d.]+%, \d+ of 40 jobs sooner, \d+ later", told)
    assert not any(said.startswith("Against") for said in conclusion(records()))


def test_the_finding_names_the_lowest_mean_jct_how_far_it_is_from_the_highest_and_the_bound():
    runs = compare(TRACE, cluster="no_network(1)", schedulers="fifo,srtf")
    fifo_s, srtf_s = (run.summary["mean_jct_s"] for run in runs)
    assert finding(runs) == (
        f"srtf has the lowest mean JCT: {human_s(srtf_s)}, {1 - srtf_s / fifo_s:.1%} below fifo; the lower bound is "
        f"{human_s(bound_jct_s(runs[0]))}."
    )
    assert finding(runs[:1]) == ""


def test_a_comparison_that_was_asked_for_and_cannot_be_is_told(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    words = (TRACE, "--cluster", "no_network(1)", "--schedulers", "fifo,b=broken.py:Broken", "--against")
    done = labkit("compare", *words, "b", cwd=tmp_path)
    assert "note: nothing is compared with b: it has not done all jobs." in done.stdout
    done = labkit("compare", *words, "fifo", cwd=tmp_path)
    assert "note: nothing is compared with fifo: no other scheduler has done all jobs." in done.stdout


def test_json_of_single_runs_says_that_it_compares_with_none(tmp_path):
    words = ("compare", TRACE, "--cluster", "no_network(1)", "--schedulers", "fifo,srtf", "--against", "fifo", "--json")
    done = labkit(*words, cwd=tmp_path)
    assert [json.loads(line)["scheduler"] for line in done.stdout.splitlines()] == ["fifo", "srtf"]
    assert "note: --json compares with fifo only with --seeds" in done.stderr


def test_none_is_called_lowest_where_all_are_the_same_on_each_seed():
    assert summarize_seeds(table(a=[1.0, 2.0], b=[1.0, 2.0])) == ["All schedulers have the same mean JCT on each seed."]


@pytest.mark.parametrize("chosen", ["fifo,srtf,fifo", "a=fifo,a=srtf"])
def test_two_schedulers_of_one_name_are_refused(chosen, tmp_path):
    done = labkit("compare", TRACE, "--cluster", "no_network(1)", "--schedulers", chosen, cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(r"scheduler has '(fifo|a)' twice; name it once, or give the two different labels", done.stderr)


def _mean() -> str:
    from labkit.core.text import human_s

    return human_s(record("fifo").summary["mean_jct_s"])
