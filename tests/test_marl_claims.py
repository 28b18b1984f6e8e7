"""The claims of MARL's evaluation: docs/marl.md has what benchmarks/marl_claims.json says."""

from pathlib import Path

import pytest

from benchmarks import marl_claims
from benchmarks._marl_claims_table import claims, epochs_to, trained

TOLD = {
    "google: Tetris": {"jct": [10.0, 14.0]},
    "google: even": {"jct": [8.0, 8.0]},
    "trained: device, seed 1": {
        "best": [6.0, 6.0], "drawn": [7.0, 7.0], "untrained": {"best": [9.0, 9.0]}, "epochs": 40, "cpu_s": 5,
        "curve": [9.0] * 20 + [6.0] * 20,
    },
    "trained: one agent, seed 1": {
        "best": [7.0, 9.0], "drawn": [7.0, 7.0], "untrained": {"best": [9.0, 9.0]}, "epochs": 40, "cpu_s": 5,
        "curve": [9.0] * 40,
    },
}  # fmt: skip


def test_a_claim_is_held_against_the_texts_baselines_and_the_best_simple_rule():
    row = next(line for line in claims(TOLD) if "| google |" in line)
    assert "| +50.0 ± 32.7 % (Tetris) | +25.0 ± 0.0 % (even) | yes |" in row  # 6 against 12 and 8


def test_who_learns_sooner_is_told_in_epochs():
    row = next(line for line in claims(TOLD) if line.startswith("| 200 epochs"))
    assert "many: 20, one: 20, down to Tetris's 12.0 intervals | | no |" in row
    assert epochs_to([1.0] * 5, 2.0) is None
    assert epochs_to(TOLD["trained: one agent, seed 1"]["curve"], 8.0) is None


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
