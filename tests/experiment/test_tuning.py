"""Searching options of a scheduler: trials that can be resumed, and a best one that is checked on other seeds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from labkit.core.errors import InputError, SweepError
from labkit.experiment.ranges import Range
from labkit.experiment.tuning import tune
from tests.command import labkit

TRACE = "poisson(15, per_hour=60, median_s=1800, mean_s=3000)"
RANGES = [Range.read("quantum_s=60:3600:log"), Range.read("placer=pack,spread")]
FRAGILE = """
from dataclasses import dataclass
from labkit.schedulers.fifo import Fifo

@dataclass(frozen=True)
class Fragile(Fifo):
    level: int = 1

    def schedule(self, snapshot):
        if self.level > 2:
            raise RuntimeError("too high")
        return super().schedule(snapshot)
"""


def search(folder: Path, **changes):
    asked = {"scheduler": "las", "ranges": RANGES, "trace": TRACE, "cluster": "no_network(1)", "n_trials": 6,
             "seeds": [0, 1], "check_seeds": [7, 8, 9], "folder": folder}  # fmt: skip
    return tune(**(asked | changes))


def test_a_search_that_was_interrupted_tries_what_one_that_was_not_tries(tmp_path):
    whole = search(tmp_path / "whole")
    part = search(tmp_path / "part", n_trials=2)
    assert len(part.trials) == 2

    def stop(number, value, values):
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "part", after_each=stop)
    ran: list[int] = []
    resumed = search(tmp_path / "part", after_each=lambda number, value, values: ran.append(number))
    assert ran == [4, 5]
    assert resumed.trials.drop(columns="trial").equals(whole.trials.drop(columns="trial"))
    assert resumed.best == whole.best
    assert resumed.checked["mean_jct_s"].tolist() == whole.checked["mean_jct_s"].tolist()


def test_the_best_is_checked_on_seeds_that_were_not_searched_beside_the_scheduler_as_it_is(tmp_path):
    found = search(tmp_path / "t")
    assert set(found.checked["seed"]) == {7, 8, 9}
    assert set(found.checked["scheduler"]) == {"as it is", "tuned"}
    assert found.trials.iloc[0]["quantum_s"] == 600.0, "the first trial has what the scheduler has by itself"
    assert found.trials["value"].min() == found.trials.set_index(["quantum_s", "placer"])["value"].loc[
        (found.best["quantum_s"], found.best["placer"])
    ]  # fmt: skip
    assert found.name.startswith("las(quantum_s=")
    assert "of 3 seeds" in found.verdict


def test_the_best_is_advised_only_where_its_whole_interval_is_better(tmp_path):
    found = search(tmp_path / "t")
    for factor, better in ((0.5, True), (1.0, False), (1.5, False)):
        table = found.checked.copy()
        own = table[table["scheduler"] == "as it is"].set_index("seed")["mean_jct_s"]
        tuned = table["scheduler"] == "tuned"
        table.loc[tuned, "mean_jct_s"] = factor * own.loc[table.loc[tuned, "seed"]].to_numpy()
        table.loc[tuned & (table["seed"] == 7), "mean_jct_s"] *= 1.01
        assert replace(found, checked=table).is_better == better
        assert replace(found, checked=table, highest=True).is_better == (factor == 1.5)


def test_a_trial_that_fails_is_told_and_the_others_stay(tmp_path, monkeypatch):
    (tmp_path / "fragile.py").write_text(FRAGILE)
    monkeypatch.chdir(tmp_path)
    found = search(tmp_path / "t", scheduler="fragile.py:Fragile", ranges=[Range.read("level=1:4")], n_trials=8)
    failed = found.trials[found.trials["error"] != ""]
    assert 0 < len(failed) < 8
    assert set(failed["level"]) <= {3, 4}
    assert failed["error"].iloc[0].startswith("SweepError: RuntimeError: too high (fragile.py:11, decision 0")
    assert found.best["level"] in (1, 2)
    with pytest.raises(SweepError, match="every trial failed; the last: SweepError: RuntimeError: too high"):
        search(tmp_path / "u", scheduler="fragile.py:Fragile", ranges=[Range.read("level=3:4")], n_trials=2)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"check_seeds": [1, 2]}, r"seeds \[1\] are used both for the search and for the check"),
        ({"ranges": [Range.read("quantm_s=1:2")]}, "unknown open option of las 'quantm_s'. Did you mean 'quantum_s'"),
        ({"scheduler": "las(quantum_s=5)"}, "unknown open option of las"),
        ({"ranges": []}, "nothing to search; name options with --param, of threshold_gpu_s, placer, quantum_s"),
        ({"metric": "mean_jtc_s"}, "unknown metric of a sweep 'mean_jtc_s'"),
        ({"trace": "nothing.csv"}, "there is no such file"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_written(changes, told, tmp_path):
    with pytest.raises(InputError, match=told):
        search(tmp_path / "t", **changes)
    assert not list(tmp_path.iterdir())


def test_a_folder_keeps_one_search(tmp_path):
    search(tmp_path / "t", n_trials=1)
    with pytest.raises(InputError, match="holds another search: seed differ"):
        search(tmp_path / "t", seed=3)
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        search(tmp_path / "u")


@pytest.mark.parametrize("text", ["a", "a=", "=1:2", "a=2:1", "a=0:1:log", "a=1:2:lin", "a=x:y", "a=1:2:3:4"])
def test_a_range_that_cannot_be_is_told(text):
    with pytest.raises(InputError, match="--param '" + text):
        Range.read(text)


def test_a_best_value_at_an_end_of_its_range_is_told():
    a = Range.read("a=1:100:log")
    assert [a.at_edge(value) for value in (1, 1.05, 10, 99, 100)] == [True, True, False, True, True]
    assert not Range.read("a=x,y").at_edge("x")


def test_the_command_tells_best_verdict_and_how_to_use_it(tmp_path):
    words = ["tune", "las", "--trace", TRACE, "--cluster", "no_network(1)", "--param", "quantum_s=60:3600:log"]
    words += ["--trials", "3", "--seeds", "2", "--check", "7-9", "--metric", "mean_jct", "--folder", "t"]
    done = labkit(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 trials, each on seeds 0 to 1; the best of them:" in done.stdout
    assert "Best trial against the default las, on held-out seeds (7 to 9):" in done.stdout
    assert "On the held-out seeds the best trial " in done.stdout
    better = "significantly better" in done.stdout
    assert ('use it: --schedulers "las(quantum_s=' in done.stdout) == better
    assert ('keep the default: --schedulers "las"' in done.stdout) == (not better)
    assert not re.search(r"quantum_s=[\d.]*\d{5}", done.stdout), "four digits are what a search can tell apart"
    again = labkit(*words, "--json", cwd=tmp_path)
    told = json.loads(again.stdout)
    assert (len(told["trials"]), told["on_checked"]["n_pairs"]) == (3, 3)
    assert (told["name"] in done.stdout) == told["better"] == better
