"""A job that is watched: a picture in place of the last one, and the result at the end."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.elastic import models, start
from labkit.elastic.data import dataset
from labkit.notebook import watch


class Shown:
    def __init__(self) -> None:
        self.charts: list[dict[str, Any]] = []

    def display(self, chart: Any, *, display_id: bool) -> Shown:
        assert display_id
        self.update(chart)
        return self

    def update(self, chart: Any) -> None:
        self.charts.append(chart.to_dict())


def test_a_job_is_drawn_while_it_trains_and_scaled_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    monkeypatch.setattr("IPython.display.display", shown.display)
    loss = models.loss("digits")
    job = start(models.build("digits"), dataset("digits-like", n=256), loss, steps=600, batch=32, lr=0.1)
    result = watch(job, ["50:+1ps"], n_steps=600, redraw_s=0.2)
    assert result.version == 600
    assert len(shown.charts) >= 2
    drawn = [max(row.get("step", 0) for rows in chart["datasets"].values() for row in rows) for chart in shown.charts]
    assert drawn == sorted(drawn)
    assert drawn[0] < drawn[-1] == 599
    assert [event["servers"] for event in result.events if event["event"] == "registration"] == [1]
