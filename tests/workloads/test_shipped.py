"""Traces by name, from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import labkit
from labkit.core.errors import InputError, TraceError
from labkit.workloads import named_traces
from labkit.workloads.named_traces import FOLDER, located, shipped
from labkit.workloads.recipes import TEXTS, TRACES


def test_every_recipe_has_a_name():
    assert {path.name for path in shipped().values()} == {*TRACES, "slurm-week.sacct"} < {*TRACES, *TEXTS}


def test_a_name_is_read_in_any_folder_unless_a_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(labkit.read("demo")) == 80
    assert labkit.read("demo").name == "demo"
    (tmp_path / "demo").write_text("arrival_s,total_steps,duration_s\n0,1,1\n")
    assert len(labkit.read("demo")) == 1


@pytest.mark.parametrize("path", ["demo.csv", "folder/demo", "./demo", "nothing", "x" * 5000])
def test_what_is_no_name_stays_as_it_is(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located(path).name == path.rpartition("/")[2]
    assert located(path).parent != FOLDER


def test_a_public_trace_has_a_name_once_it_is_fetched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(named_traces, "_folder", lambda name, cache: tmp_path / "cache" / name)
    with pytest.raises(InputError, match=r"philly was not downloaded yet: labkit traces fetch philly"):
        located("philly")
    (tmp_path / "cache" / "philly").mkdir(parents=True)
    (tmp_path / "cache" / "philly" / "philly.csv").write_text("")
    assert located("philly") == tmp_path / "cache" / "philly" / "philly.csv"


def test_a_folder_of_the_name_of_a_shipped_trace_counts_only_with_a_trace_in_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("testbed").mkdir()
    Path("testbed/hosts.toml").touch()
    assert located("testbed") == FOLDER / "testbed.csv"
    Path("testbed/part-00000.csv.gz").touch()
    assert located("testbed") == Path("testbed")


@pytest.mark.parametrize("path", ["dmo", "traces/dmo.csv", "Phily-like"])
def test_a_name_that_is_nearly_that_of_a_shipped_trace_is_told(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    near = "philly-like" if "like" in path else "demo"
    with pytest.raises(TraceError, match=f"^{path}: there is no such file. Did you mean '{near}'"):
        labkit.read(path)
