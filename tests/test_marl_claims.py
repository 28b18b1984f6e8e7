"""The claims of MARL's evaluation: docs/marl.md has what benchmarks/marl_claims.json says."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import marl_claims, placement
from benchmarks._marl_claims_table import claims, epochs_to, trained

TOLD = {
    "google: Tetris": {"jct": [10.0, 14.0]},
    "google: even": {"jct": [8.0, 8.0]},
    "google: marl": {"jct": [9.0, 11.0]},
    "cores: marl": {"mean": [0.6, 0.7], "samples": [0.55, 0.6, 0.75], "within": 0.9},
    "table III: mild": {
        "two_stage": 0.2, "additive": 0.1, "quadratic": 0.1, "linear": 0.3, "without_pcie": 0.3, "without_cpu": 0.3,
    },
    "trained: device, speed, seed 1": {
        "best": [6.0, 6.0], "drawn": [7.0, 7.0], "untrained": {"best": [9.0, 9.0]}, "epochs": 40, "cpu_s": 5,
        "curve": [9.0] * 20 + [6.0] * 20,
    },
    "trained: one agent, speed, seed 1": {
        "best": [7.0, 9.0], "drawn": [7.0, 7.0], "untrained": {"best": [9.0, 9.0]}, "epochs": 40, "cpu_s": 5,
        "curve": [9.0] * 40,
    },
}  # fmt: skip


def test_a_claim_is_held_against_the_texts_baselines_and_the_best_simple_rule():
    row = next(line for line in claims(TOLD) if "| google |" in line)
    assert "| +50.0 ± 32.7% (Tetris) | +25.0 ± 0.0% (even) |" in row  # 6 against 12 and 8
    assert "| +16.7 ± 16.3% (Tetris) | -25.0 ± 24.5% (even) | yes; no |" in row  # 10, where 24.3% is claimed


def test_the_cores_in_use_are_held_against_the_texts_range():
    row = next(line for line in claims(TOLD) if line.startswith("| CPU use"))
    assert "not measured | | 55 to 75% (median 60) in nine of ten samples; servers' means 60 to 70% | | not mea" in row
    assert row.endswith("not measured; yes |")


def test_table_iii_tells_which_models_the_two_stage_one_beats():
    last = {line.split("error of ")[1].split(",")[0]: line for line in claims(TOLD) if "Table III" in line}
    assert last["two_stage"].endswith("| mild no |")
    assert last["quadratic"].endswith("| mild no |")
    assert last["linear"].endswith("| mild yes |")


def test_cores_in_use_are_those_of_tasks_that_are_there():
    world = marl_claims.WORLDS["testbed"]
    run = world.experiment(1).run("even")
    start_s, end_s = run.table["first_start_s"].to_numpy(), run.table["completion_s"].to_numpy()
    times_s = np.array([start_s.min() - 1.0, 7200.0, end_s.max() + 1.0])
    use = marl_claims.cores_in_use(run, times_s)
    assert use.shape == (3, run.cluster.n_machines)
    assert not use[[0, 2]].any()
    known = marl_claims.level(marl_claims.INTERFERENCE)
    cores, _ = marl_claims.task_use(run.jobs, uses=known.uses)
    there = (start_s <= 7200.0) & (end_s > 7200.0)
    busy = (cores[0] * run.jobs.n_workers + cores[1] * run.jobs.n_ps)[there].sum()
    assert use[1].sum() * 48 == pytest.approx(busy)  # cores of each machine


def test_learning_speed_is_given_in_epochs():
    row = next(line for line in claims(TOLD) if line.startswith("| 200 epochs"))
    assert "many: 20, one: 20, down to Tetris's 12.0 intervals | | | | no |" in row
    assert epochs_to([1.0] * 5, 2.0) is None
    slow = TOLD | {"trained: one agent, speed, seed 1": {"best": [9.0], "curve": [19.0] * 30}}
    assert "one: never in 30, down to Tetris's 12.0 intervals | | | | not shown |" in "".join(claims(slow))
    slow["trained: one agent, speed, seed 1"]["curve"] = [19.0] * 40
    assert "one: never in 40, down to Tetris's 12.0 intervals | | | | yes |" in "".join(claims(slow))
    assert epochs_to(TOLD["trained: one agent, speed, seed 1"]["curve"], 8.0) is None


def test_what_was_not_measured_is_said():
    assert all("not measured" in line for line in claims({})[2:])
    assert len(trained({})) == 2


def test_the_docs_have_the_tables_of_what_was_measured():
    docs = Path("docs/marl.md")
    if not docs.exists() or not marl_claims.RESULTS.exists():
        pytest.skip("nothing was measured")
    told, text = marl_claims.results(), docs.read_text("utf-8")
    for table in (trained, claims):
        assert "\n".join(table(told)) in text


def test_a_variant_is_trained_and_judged_beside_the_shipped_policy(capsys):
    placement.ablation(["no leave-one-out"], ["marl"], [0])
    whole, no_waits, no_forwards, variant = capsys.readouterr().out.splitlines()
    assert whole.startswith("| marl | | | 5.5")
    assert no_waits.startswith("| marl, waits switched off |")
    assert no_forwards.startswith("| marl, forwards off |")
    assert len({whole.split("|")[4], no_waits.split("|")[4], no_forwards.split("|")[4]}) == 3
    assert variant.startswith("| no leave-one-out | 2 |")
