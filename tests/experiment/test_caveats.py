"""A run says which speeds it rests on, and what its scheduler's name promises and it cannot show here."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from labkit import simulate
from labkit.cli.compare import on_one_seed
from labkit.cli.tables import as_json_row
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.experiment import Experiment, compare
from labkit.experiment.caveats import Caveat
from labkit.experiment.scenario import Scenario
from labkit.results import load, run_table
from labkit.results.comparison import bills, dollars
from labkit.schedulers import make
from labkit.topology import build

PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}


def jobs(**columns) -> Jobs:
    given = {"model": "A3C", "duration_s": 3600.0} | columns
    return Jobs.of(arrival_s=[0.0, 10.0, 20.0], total_steps=1000, n_workers=1, name="three", **given)


def caveats_of(scheduler: str, *, speed: str = "recorded", **columns) -> list[str]:
    experiment = Experiment.of(jobs(**columns), cluster="gavel-8-16-24", speed=speed)
    return experiment.caveats(make(scheduler), name=scheduler)


def test_the_speed_model_stands_in_the_record_and_stays_with_it(tmp_path):
    record = simulate(jobs(), cluster="gavel-8-16-24", scheduler="fifo", speed="recorded", runs=tmp_path)
    said = "the trace's own durations; all 3 device types equally fast"
    assert record.info.config["speeds"] == said
    assert load(record.info.run, runs=tmp_path).info.config["speeds"] == said
    gavel = Experiment.of(jobs(), cluster="gavel-8-16-24", speed="gavel")
    assert gavel.speeds == "measured throughputs by model, GPUs and device type"


def test_a_policy_that_lives_on_differences_in_speed_says_where_there_are_none():
    (said,) = caveats_of("gavel_las")
    assert said.startswith("gavel_las lives on differences in speed between device types, and here v100, p100, k80 are")
    assert "--throughputs FILE" in said
    assert caveats_of("gavel_las", speed="gavel") == []
    assert caveats_of("gavel_las_agnostic") == caveats_of("fifo") == []


def test_a_policy_about_deadlines_says_where_there_are_none():
    assert caveats_of("gavel_slo", speed="gavel") == [
        "gavel_slo: no job of three has an SLO (slo_s), so it only minimises cost."
    ]
    assert caveats_of("gavel_slo", speed="gavel", slo_s=[np.nan, np.nan, 7200.0]) == []


def test_python_is_warned_too():
    with pytest.warns(Caveat, match="gavel_las lives on differences"):
        simulate(jobs(), cluster="gavel-8-16-24", scheduler="gavel_las", speed="recorded")


def test_a_run_beside_one_about_cost_is_billed_at_the_same_prices():
    records = compare(
        jobs(slo_s=[1e5, 1e5, 1.0]), cluster="gavel-8-16-24", schedulers=["fifo", "gavel_slo"], speed="gavel"
    )
    table = run_table(records)
    assert table["dollars"].tolist() == [dollars(record, prices=PRICES) for record in records]
    assert (table["dollars"] > 0).all()
    assert table["in_time"].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert [as_json_row(record)["dollars"] for record in records] == table["dollars"].tolist()


def test_where_nobody_asks_for_cost_none_is_told():
    records = compare(jobs(), cluster="gavel-8-16-24", schedulers=["fifo", "srtf"], speed="gavel")
    assert np.isnan(bills(records)).all()
    assert as_json_row(records[0])["dollars"] is None


def test_compare_prints_speeds_prices_notes_cost_and_slos_above_and_in_the_table(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what stands in the header is not told twice
        asked = Scenario.of(jobs(slo_s=7200.0), cluster="gavel-8-16-24", speed="recorded")
        on_one_seed(asked, schedulers="fifo,gavel_cost")
    head, speeds, prices, note, *rest = capsys.readouterr().out.splitlines()
    last = max(number for number, line in enumerate(rest) if line.endswith("."))  # of the notes
    table = rest[last + 1 :]
    assert head.startswith("3 jobs of three on gavel-8-16-24")
    assert speeds == "speeds: the trace's own durations; all 3 device types equally fast"
    assert prices == "prices: v100 2.48 $, p100 1.46 $, k80 0.45 $ per GPU and hour"
    assert note.startswith("note: gavel_cost lives on differences in speed")
    assert "cost" in table[1]
    assert "SLOs met" in table[1]
    assert "$" in table[2]


def test_json_tells_speeds_and_notes(capsys):
    asked = Scenario.of(jobs(), cluster="gavel-8-16-24", speed="recorded")
    with pytest.warns(Caveat):
        on_one_seed(asked, schedulers="gavel_las", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["speeds"] == "the trace's own durations; all 3 device types equally fast"
    assert told["notes"][0].startswith("gavel_las lives on differences")


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
@pytest.mark.parametrize("scheduler", ["gavel_cost", "gavel_slo"])
def test_no_price_is_invented(scheduler):
    cluster = replace(build("gavel-8-16-24"), device_types=("h100", "l40s", "k80"))
    with pytest.raises(InputError) as refused:
        simulate(jobs(slo_s=1e5), cluster=cluster, scheduler=scheduler, speed="recorded")
    assert str(refused.value).startswith(f"{scheduler}: no price is known for device types h100, l40s; give dollars")
    assert f"{scheduler}(prices={{'h100': DOLLARS, 'l40s': DOLLARS, 'k80': DOLLARS}})" in str(refused.value)


@pytest.mark.parametrize(
    "prices", ["{}", "{'v100': -1}", "{'v100': 0}", "5", "{'v100': 'dear'}", "{1: 2.0}", "{'v100': True}"]
)
def test_prices_that_cannot_be_are_refused(prices):
    with pytest.raises(InputError, match="expected dollars per GPU and hour"):
        make(f"gavel_cost(prices={prices})")
