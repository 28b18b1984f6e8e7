"""The public suites for backends and speed models catch what they are there to catch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import Events, Jobs, Kind, Placement
from labkit.core.events import events
from labkit.core.resources import Bools, Floats
from labkit.core.running import Running
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.testing import ConformanceError, check_backend, check_speed_model
from labkit.testing.strategies import clusters, jobs
from labkit.topology import no_network

JOBS = Jobs.of(arrival_s=[0, 30, 60], total_steps=100, duration_s=100, n_workers=2, max_workers=4)
CLUSTER = no_network(2)


class Honest(Simulator):
    def __init__(self) -> None:
        super().__init__(JOBS, CLUSTER, speed=Recorded(JOBS, CLUSTER))


class Backwards(Honest):
    def apply(self, placement: Placement) -> Events:
        happened = super().apply(placement)
        self._truth.now_s -= self._truth.now_s / 2
        return happened


class TooFar(Honest):
    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        return super().advance(until_s + 50, stop_at_event=stop_at_event)


class Prophetic(Honest):
    def apply(self, placement: Placement) -> Events:
        happened = super().apply(placement)
        happened["time_s"][-1] += 5
        return happened


class Twice(Honest):
    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        happened = super().advance(until_s, stop_at_event=stop_at_event)
        return np.concatenate([happened, happened])


class Ghostly(Honest):
    """Starts a job that was not placed."""

    def apply(self, placement: Placement) -> Events:
        ghost = events(1)
        ghost["time_s"], ghost["kind"], ghost["job"], ghost["value"] = self.now_s, Kind.STARTED, 0, 0
        happened = super().apply(placement)
        return np.concatenate([happened[:1], ghost, happened[1:]])


class Silent(Honest):
    def apply(self, placement: Placement) -> Events:
        return super().apply(placement)[1:]


class Boundless(Honest):
    """Accepts what does not fit."""

    def apply(self, placement: Placement) -> Events:
        try:
            return super().apply(placement)
        except ValueError:
            return super().apply(Placement.nothing())


class Restless(Honest):
    """Another story each time."""

    n = 0

    def __init__(self) -> None:
        Restless.n += 1
        work = JOBS.with_columns(true_steps=JOBS.true_steps + Restless.n)
        Simulator.__init__(self, work, CLUSTER, speed=Recorded(work, CLUSTER))


@pytest.mark.parametrize(
    ("backend", "complaint"),
    [
        (Backwards, "time goes back from"),
        (TooFar, "was to advance to 0.0 s and is at 50.0 s"),
        (Prophetic, "tells events out of order"),
        (Twice, "lets job 0 arrive twice"),
        (Ghostly, "tells STARTED of job 0, which holds no tasks"),
        (Silent, "does not begin with a DECIDED event"),
        (Boundless, "accepts a placement with a job that does not exist"),
        (Restless, "another story the second time"),
    ],
)
def test_a_backend_that_lies_is_caught(backend: type[Simulator], complaint: str) -> None:
    check_backend(Honest)
    with pytest.raises(ConformanceError, match=complaint) as caught:
        check_backend(backend)
    assert str(caught.value).endswith(".")


class Speeds(Recorded):
    def __init__(self) -> None:
        super().__init__(JOBS, CLUSTER)


class Crowded(Speeds):
    def speeds(self, running: Running) -> Floats:
        return super().speeds(running) / max(len(running.job), 1)


class Positional(Crowded):
    local = False

    def speeds(self, running: Running) -> Floats:
        return super().speeds(running) * (1 + np.arange(len(running.job)))


class Negative(Speeds):
    def speeds(self, running: Running) -> Floats:
        return super().speeds(running) - 100


class Forgetful(Speeds):
    calls = 0

    def speeds(self, running: Running) -> Floats:
        self.calls += 1
        return super().speeds(running) * self.calls


class Scribbling(Speeds):
    def speeds(self, running: Running) -> Floats:
        running.count[:] += 1
        return super().speeds(running)


class Nowhere(Speeds):
    def runs_on(self) -> Bools:
        return ~super().runs_on()


class Transposed(Speeds):
    def runs_on(self) -> Bools:
        return super().runs_on().T


class Instant(Speeds):
    def durations_s(self) -> Floats:
        return super().durations_s() * 0


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (Crowded, "says it is local, but job"),
        (Positional, "depend on the order"),
        (Negative, "a speed that is negative"),
        (Forgetful, "differently the second time"),
        (Scribbling, "changes the columns"),
        (Nowhere, "run on no device type"),
        (Transposed, r"has the shape \(1, 3\); expected \(3, 1\)"),
        (Instant, "is not positive"),
    ],
)
def test_a_speed_model_that_lies_is_caught(model: type[Speeds], complaint: str) -> None:
    check_speed_model(Speeds(), jobs=JOBS, cluster=CLUSTER)
    with pytest.raises(ConformanceError, match=complaint) as caught:
        check_speed_model(model(), jobs=JOBS, cluster=CLUSTER)
    assert str(caught.value).startswith(model.__name__)


@given(data=st.data())
@settings(max_examples=15)
def test_recorded_speeds_pass_on_any_cluster(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    drawn = data.draw(jobs(cluster=cluster))
    check_speed_model(Recorded(drawn, cluster), jobs=drawn, cluster=cluster)


@given(data=st.data())
@settings(max_examples=10)
def test_a_simulator_of_any_jobs_passes(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    drawn: Any = data.draw(jobs(cluster=cluster, max_jobs=6))
    check_backend(lambda: Simulator(drawn, cluster, speed=Recorded(drawn, cluster)))


def test_the_suite_needs_no_hypothesis() -> None:
    """It is public, and Hypothesis is only a tool for developers: labkit.testing.strategies alone imports it."""
    import subprocess
    import sys

    code = "import sys; sys.modules['hypothesis'] = None; import labkit.testing"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
