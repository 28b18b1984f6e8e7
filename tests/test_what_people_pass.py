"""Values as people have them: of numpy and pandas, infinite, missing, as mappings, or of a generator."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest

import labkit
from labkit import Grid, Scenario
from labkit.core import Gangs, InputError, Jobs, Placement
from labkit.core.errors import PlacementError, TraceError
from labkit.experiment.ranges import Range
from labkit.experiment.run import scheduler_of
from labkit.experiment.tuning import tune
from labkit.results.sweeps import sweep_means
from labkit.simulator import Faults, Overheads, Variation

TRACE = "poisson(6, per_hour=60)"
JOBS = Jobs.of(arrival_s=[0, 0, 1], total_steps=[100, 50, 10], duration_s=[100, 50, 10], n_workers=4)


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": np.int64(3)},
        {"arrival_rate": np.int64(2), "prices": {"v100": np.int64(2)}, "quotas": {"*": np.int64(16)}},
        {"overheads": Overheads(np.int64(5), 5, 5), "faults": Faults(mtbf_s=np.float32(3000), mttr_s=100)},
        {"mtbf_s": math.inf, "mttr_s": 5},
        {"mtbf_s": 3000, "mttr_s": 100, "variation": Variation(np.int32(60), error=np.float64(0.1))},
        {"faults": Faults(3000, 100, checkpoint_s=np.int64(20)), "preemption_loses_work": True},
    ],
)
def test_numbers_of_numpy_are_kept_as_numbers_and_the_run_can_be_made_again(fields, tmp_path):
    run = labkit.simulate(TRACE, cluster="demo", scheduler="srtf", runs=tmp_path, **fields)
    kept = labkit.load(tmp_path / run.info.run)
    assert "own" not in kept.info.config["scenario"]
    assert kept.info.seed == int(fields.get("seed", 0))
    again = labkit.simulate(Scenario.of_run(kept), scheduler=scheduler_of(kept))
    assert again.table["jct_s"].tolist() == run.table["jct_s"].tolist()
    assert "np." not in json.dumps(kept.info.config)


@pytest.mark.parametrize("checkpoint_s", [0, 20])
def test_two_kinds_of_checkpoints_cannot_be_written_down(checkpoint_s):
    """Those of failures are the faults' own; what is lost otherwise has `checkpoint_s`."""
    faults = Faults(3000, 100, checkpoint_s)
    run = labkit.simulate(TRACE, cluster="demo", scheduler="srtf", faults=faults, checkpoint_s=7)
    with pytest.raises(InputError, match="its faults came from Python; give it again"):
        Scenario.of_run(run)
    again = Scenario.of_run(run, faults=faults)
    assert labkit.simulate(again, scheduler="srtf").table["jct_s"].tolist() == run.table["jct_s"].tolist()


def test_schedulers_of_one_class_are_told_apart_by_their_options_and_labels_are_a_mapping():
    two = [labkit.make("las", threshold_gpu_s=n, quantum_s=5) for n in (5, 5000)]
    runs = labkit.compare(JOBS, cluster="no_network(1)", schedulers=two)
    assert runs.table["label"].tolist() == ["las(threshold_gpu_s=5)", "las(threshold_gpu_s=5000)"]
    labels = labkit.compare(JOBS, cluster="no_network(1)", schedulers={"one": "fifo", "other": two[0]}).table["label"]
    assert labels.tolist() == ["one", "other"]
    with pytest.raises(InputError, match=r"scheduler has 'las' twice; .*\{'a': ..., 'b': ...\} in Python"):
        labkit.compare(JOBS, cluster="no_network(1)", schedulers=[two[0], two[0]])
    same = [labkit.simulate(JOBS, cluster="no_network(1)", scheduler=each) for each in two]
    assert labkit.run_table(run for run in same)["label"].is_unique


HOURS = [1, 2]


@pytest.mark.parametrize(
    "spans",
    [
        pd.to_timedelta(HOURS, unit="h"), pd.Series(pd.to_timedelta(HOURS, unit="h")), np.array(HOURS, "m8[h]"),
        [np.timedelta64(n, "h") for n in HOURS], [3600, 7200],
    ],
)  # fmt: skip
def test_spans_of_time_are_seconds_and_dates_are_refused(spans):
    assert Jobs.of(arrival_s=[0, 0], total_steps=1, duration_s=spans).duration_s.tolist() == [3600, 7200]
    with pytest.raises(TraceError, match=r"arrival_s holds dates; expected seconds, as \(dates - dates.min"):
        Jobs.of(arrival_s=pd.to_datetime(["2026-01-01", "2026-01-02"]), total_steps=1, duration_s=1)


def test_a_text_that_is_missing_is_none_and_a_switch_that_is_missing_is_refused():
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=1, duration_s=1, device_type=[None, math.nan], partition=[pd.NA, "a"])
    assert jobs.device_type.tolist() == ["", ""]
    assert jobs.partitions == ("", "a")
    with pytest.raises(TraceError, match="sync is nan; expected True or False"):
        Jobs.of(arrival_s=[0, 0], total_steps=1, duration_s=1, sync=[True, math.nan])


def test_one_number_of_seeds_is_so_many_whatever_its_type():
    grids = [Grid(schedulers="fifo", trace=TRACE, cluster="demo", seeds=n) for n in (3, np.int64(3), [0, 1, 2])]
    assert {grid.axes["seed"] for grid in grids} == {(0, 1, 2)}
    with pytest.raises(InputError, match=r"seeds is 3.0; expected a whole number"):
        Grid(schedulers="fifo", trace=TRACE, cluster="demo", seeds=3.0)


def test_a_grid_takes_mappings_infinite_numbers_and_generators():
    grid = Grid(
        schedulers=(name for name in ("fifo", "srtf")), trace=TRACE, cluster="demo", quotas={"*": 16},
        mtbf_s=[math.inf, 600], mttr_s=60,
    )  # fmt: skip
    assert grid.axes["quotas"] == ("*=16",)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = labkit.sweep(grid, workers=0, progress=False)
    assert len(table) == 4
    assert (table["error"] == "").all()
    assert len(sweep_means(table)) == 4


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"seed": None}, "seed is None; expected a whole number >= 0"),
        ({"start_s": None}, "start_s is None; expected a number"),
        ({"sharding": None}, "sharding is None; expected a name"),
        ({"mttr_s": 5}, "mttr_s=5 without mtbf_s; these go together: mtbf_s, mttr_s, checkpoint_s"),
        ({"speed_error": 0.5}, "speed_error=0.5 without period_s; these go together"),
        ({"mtbf_s": 30, "mttr_s": math.inf}, "Faults.mttr_s is inf; expected seconds, at most"),
        ({"period_s": 10, "straggler_factor": 3}, "Variation.straggler_factor is 3; expected a fraction from 0 to 1"),
        ({"period_s": 9, "straggler_factor": 0, "straggler_probability": 1}, "all jobs stand still for ever"),
        ({"prices": {"v100": -1}}, "'v100=-1' is no price"),
        ({"prices": {"v100": math.nan}}, "'v100=nan' is no price"),
        ({"prices": ""}, "--prices: there is none"),
        ({"quotas": pd.Series({"*": 4})}, "quotas is a Series; expected USER=GPUS"),
        ({"speed": "recorded", "throughputs": "x.csv"}, "'recorded' takes no throughputs, and x.csv is given"),
    ],
)
def test_what_cannot_be_is_told_in_one_line_before_anything_runs(fields, told):
    with pytest.raises(InputError, match=told):
        labkit.simulate(JOBS, cluster="no_network(1)", scheduler="fifo", **fields)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"n_workers": 1.9}, r"Gangs.of: n_workers is \[1.9\]; expected whole numbers"),
        ({"n_workers": -1}, "Gangs.of: n_workers is -1; expected numbers >= 0"),
        ({"n_workers": 1, "device_type": "v100"}, r"Gangs.of: device_type is \['v100'\]; expected whole numbers"),
        ({"n_workers": [1, 2, 3]}, r"Gangs.of: n_workers has the shape \(3,\) for 2 rows"),
    ],
)
def test_no_gang_is_rounded(columns, told):
    with pytest.raises(PlacementError, match=told):
        Gangs.of([0, 1], **columns)
    assert Gangs.of([0, 1], n_workers=np.array([2.0, 1.0])).n_workers.tolist() == [2, 1]


def test_no_row_of_a_placement_is_rounded():
    with pytest.raises(PlacementError, match=r"Placement.of: group is \[0.5\]; expected whole numbers"):
        Placement.of([0], job=[0], role=[0], group=[0.5], count=[4])


def test_a_search_takes_texts_generators_and_a_number_of_seeds(tmp_path):
    ranges = ["threshold_gpu_s=60,36000", Range.read("quantum_s=60:600:log")]
    found = tune(
        "las", (each for each in ranges), trace=TRACE, cluster="no_network(1)", folder=tmp_path, n_trials=1, seeds=1,
        check_seeds=[7],
    )  # fmt: skip
    assert set(found.best) == {"threshold_gpu_s", "quantum_s"}
    with pytest.raises(InputError, match="n_trials is 0"):
        tune("las", ranges, trace=TRACE, cluster="no_network(1)", folder=tmp_path, n_trials=0, seeds=1, check_seeds=[7])


def test_a_class_in_the_place_of_a_placer_is_refused():
    with pytest.raises(InputError, match=r"drf: placer is .*; expected an object that has place"):
        labkit.make("drf", placer=labkit.placers.Pack)
