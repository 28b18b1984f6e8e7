"""Jobs whose members sit on several hosts: launchers with folders of their own, on addresses of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from labkit.elastic import Result
from tests.elastic import two_hosts
from tests.elastic.two_hosts import HALF, Bed, bed


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Let processes get the dataset of the tests without the tests."""
    cloudpickle.register_pickle_by_value(two_hosts)
    yield
    cloudpickle.unregister_pickle_by_value(two_hosts)


@pytest.fixture(scope="module")
def control(by_value: None, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run on one host, to which nothing happens."""
    with bed(tmp_path_factory.mktemp("control"), hosts="", sites=(), place=None, network="local") as alone:
        return alone.result()


def names(run: Bed, event: str) -> list[str]:
    return [str(e["name"]) for e in run.events() if e["event"] == event]


def deaths(run: Bed) -> list[str]:
    return [e["name"] for e in run.events() if e["event"] == "left" and not e["expected"]]


@pytest.mark.parametrize("strategy", ["handover", "suspend", "checkpoint"])
def test_a_job_that_is_placed_anew_and_anew_gives_the_bits_of_an_undisturbed_run(
    control: Result, tmp_path: Path, strategy: str
) -> None:
    """It grows, moves to the other host as a whole, and shrinks."""
    with bed(tmp_path) as run:
        run.until("loss")
        assert run.sitting() == HALF
        for place in ({"a/0": (1, 1), "b/0": (2, 2)}, {"b/0": (2, 1)}, {"a/0": (1, 1)}):
            run.place(place, strategy=strategy)
            assert run.sitting() == place
        result = run.result()
        assert result.digest == control.digest
        assert not deaths(run)
        assert [e for e in result.events if e["event"] == "scaled"][-1]["strategy"] == strategy
        assert not run.left_behind()
