"""Which GPU a worker gets: one that the job was allotted, of those of its site, that the fewest others have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.elastic.protocol.sites import VARIABLE, Site, allotted, devices_of

SITE = Site("a/1", "a", devices=("gpu:2", "gpu:3"))


@pytest.fixture
def allotment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "gpus.json"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_a_worker_may_have_those_gpus_of_its_site_that_the_job_has_now(allotment: Path) -> None:
    allotment.write_text(json.dumps({"0": "GPU-a", "3": "GPU-d"}))
    assert devices_of(SITE) == ["GPU-d"]
    allotment.write_text(json.dumps({"2": "GPU-c", "3": "GPU-d"}))
    assert devices_of(SITE) == ["GPU-c", "GPU-d"]


@pytest.mark.parametrize("content", ["{", '["GPU-a"]', '"GPU-a"', "7"])
def test_a_file_that_is_no_allotment_is_told_by_name(allotment: Path, content: str) -> None:
    allotment.write_text(content)
    with pytest.raises(OSError, match=r"gpus\.json is no list of GPUs"):
        allotted()


def test_without_an_allotment_a_site_with_gpus_has_none_and_others_have_what_they_say(
    allotment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allotment.write_text("{}")
    with pytest.raises(OSError, match=r"site 'a/1': the job has none of the GPUs 2, 3 of this host \(.* has none\)"):
        devices_of(SITE)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(OSError, match=r"\(no agent hands them out\)"):
        devices_of(SITE)
    assert devices_of(Site("a/0", "a", devices=("cuda:1", "cpu"))) == ["cuda:1", "cpu"]
