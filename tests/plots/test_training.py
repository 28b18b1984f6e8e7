"""Figures of elastic jobs, from hand-made events and tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from labkit.plots.theme import offline_renderer
from labkit.plots.training import (
    DELAYS,
    loss_curve,
    pauses,
    plot_convergence,
    plot_pauses,
    plot_staleness,
    plot_step_times,
    plot_training,
    scaling_marks,
    step_times,
)


def event(what: str, **columns: Any) -> dict[str, Any]:
    return {"event": what, "time": 0.0, **columns}


EVENTS = [
    event("joined", name="ps-0", role="server"),
    event("joined", name="worker-0", role="worker"),
    event("loss", version=0, loss=2.0),
    event("registration", scaling=1, servers=1, workers=-2),
    event("joined", name="ps-1", role="server"),
    event("loss", version=1, loss=1.0),
    event("scaled", scaling=1),
    event("loss", version=2, loss=0.5),
]

SCALINGS = pd.DataFrame(
    {
        "strategy": ["handover", "handover", "suspend", "checkpoint"],
        "suspended_s": [0, 0, 0.02, 3.2],
        "late_s": [0.004, -0.001, 0.05, None],
        "registration_s": [0.01, 0.01, 0.01, None],
        "assignment_s": [0.002, 0.002, 0.002, None],
        "migration_s": [0.1, 0.1, 0.1, None],
        "update_s": [0.0, 0.0, 0.02, None],
        "mb": [10, 10, 100, 100],
    }
)


def svg(chart: Any) -> str:
    return str(offline_renderer(chart.to_dict())["image/svg+xml"])


def test_the_curve_tells_the_loss_and_who_was_there_at_each_step() -> None:
    assert loss_curve(EVENTS).to_dict("list") == {
        "step": [0, 1, 2], "loss": [2.0, 1.0, 0.5], "servers": [1, 2, 2], "workers": [1, 1, 1],
    }  # fmt: skip


def test_a_mark_stands_where_a_scaling_was_complete_and_says_what_was_asked_for() -> None:
    assert scaling_marks(EVENTS).to_dict("records") == [{"step": 1, "says": "+1 PS, −2 workers"}]
    assert "−2 workers" in svg(plot_training(EVENTS))


def test_a_job_that_has_only_begun_can_be_drawn() -> None:
    for told in ([], EVENTS[:2], EVENTS[:3]):
        assert "Loss" in svg(plot_training(told, n_steps=100))


def test_a_repeated_step_is_drawn_once() -> None:
    assert loss_curve([*EVENTS, event("loss", version=2, loss=0.4)])["loss"].tolist() == [2.0, 1.0, 0.4]


def test_many_steps_are_averaged_and_the_figure_says_so() -> None:
    many = [event("loss", version=v, loss=1.0 + v % 2) for v in range(1000)]
    assert "mean of 3 steps" in svg(plot_training(many))


def test_strategies_are_judged_by_standing_still_and_by_their_slowest_step_too() -> None:
    table = pauses(SCALINGS)
    assert table.groupby("kind").size().to_dict() == {"worker stands still": 4, "step is late by": 3}
    assert table.loc[table["kind"] == "step is late by", "ms"].tolist() == [4.0, 0.0, 70.0]
    drawn = svg(plot_pauses(SCALINGS))
    for words in (">20 ms<", ">70 ms<", ">3.2 s<", ">0<", ">2.0 ms<", *(f">{kind}<" for kind in DELAYS)):
        assert words in drawn


def test_times_of_the_four_steps_are_medians_by_size_of_the_model() -> None:
    table = step_times(SCALINGS)
    assert table[table["mb"] == 10]["ms"].tolist() == pytest.approx([10, 2, 100, 0])
    assert ">100 MB<" in svg(plot_step_times(SCALINGS))


def test_curves_lie_on_each_other_the_first_broad_and_pale() -> None:
    layers = plot_convergence({"without": [2, 1], "with": [2, 1]}).to_dict()["layer"]
    assert [layer["mark"]["strokeWidth"] for layer in layers] == [9, 1.6]


def test_staleness_is_drawn_beside_synchronous_training() -> None:
    table = pd.DataFrame({"mode": ["sync", "async"], "staleness": [0, 1.5], "loss": [0.2, 0.3]})
    assert "pull and push" in svg(plot_staleness(table))
