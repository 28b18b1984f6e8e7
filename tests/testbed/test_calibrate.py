"""A profile of another machine, scaled by one job: what is measured, and what is scaled."""

from __future__ import annotations

import pytest

from labkit.experiment.demo import PROFILE
from labkit.speed.profiled import Pool, read
from labkit.speed.profiled.profile import GangMeasurement
from labkit.testbed.profiling.isolated import ChangeMeasurement, Ratios, ratios_of, scaled

BY = Ratios(step=2.0, step_cpu=1.5, start=3.0, start_cpu=2.5)
HERE = [Pool(name="here", hosts=["h0", "h1", "h2"], cores=8.0)]


def test_updates_starts_and_cores_become_those_of_this_machine():
    shipped = read(PROFILE)
    mine = scaled(shipped, BY, HERE)
    assert not mine.faults()
    assert mine.pools == HERE
    for old, new in zip(shipped.cells, mine.cells, strict=True):
        assert new.step_s == pytest.approx(2.0 * old.step_s)
        assert new.cpu_s == pytest.approx(1.5 * old.cpu_s)
        assert (new.model, new.n_ps, new.n_workers, new.n_hosts) == (old.model, old.n_ps, old.n_workers, old.n_hosts)
    for old, new in zip(shipped.overheads, mine.overheads, strict=True):
        assert (new.median_s, new.cpu_s) == pytest.approx((3.0 * old.median_s, 2.5 * old.cpu_s))
    assert "an update takes 2.00 times as long here" in mine.made.notes[-1]


def test_ratios_are_those_of_the_smallest_gang_and_its_start():
    shipped = read(PROFILE)
    cell = GangMeasurement(
        model="dssm", n_ps=1, n_workers=1, step_s=2 * 0.0093487, cpu_s=1.5 * 0.0098096, busy_cores=0.7
    )
    found = ratios_of(
        shipped,
        cell,
        [ChangeMeasurement("start", "dssm", 2, 3 * 3.05, 2.5 * 3.531), ChangeMeasurement("stop", "dssm", 0, 1.0)],
    )
    assert (found.step, found.step_cpu, found.start, found.start_cpu) == pytest.approx((2.0, 1.5, 3.0, 2.5))
    assert "something else kept 0.7 cores busy" in str(found)
    assert "busy" not in str(BY)
