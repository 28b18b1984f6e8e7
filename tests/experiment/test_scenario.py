"""A scenario is what a simulation is except its scheduler: one home for each option, written down and made again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import labkit
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.experiment.cadence import at_events, every_slot
from labkit.experiment.cell import split
from labkit.experiment.experiment import Experiment
from labkit.experiment.scenario import DEFAULTS, OPTIONS, Fields, Scenario
from labkit.results.record import RunRecord
from labkit.results.store import load
from labkit.simulator import Faults, Overheads, Variation
from tests.command import labkit as command

ROOT = Path(__file__).resolve().parents[2]
GIVEN: dict[str, dict[str, Any]] = {
    "rules": {"quotas": "user=40", "slot_s": 300.0, "first": 30, "arrival_rate": 1.5, "any_type": True},
    "troubles": {"start_s": 20.0, "restart_s": 30.0, "mtbf_s": 4e4, "mttr_s": 600.0, "checkpoint_s": 60.0, "seed": 3},
    "speeds": {"period_s": 600.0, "speed_error": 0.1, "straggler_probability": 0.1, "epoch_error": 0.2},
    "objects": {
        "overheads": Overheads(5, 6, 7), "faults": Faults(3e4, 300.0, 30.0), "variation": Variation(900.0, 0.2),
        "cadence": every_slot(600), "quotas": {"user": 50.0},
    },
    "names": {"interference": "calibrated", "overheads": "dlrover", "speed": "step-time"},
}  # fmt: skip


def same(one: RunRecord, other: RunRecord) -> bool:
    """Whether two runs have the same events, bit by bit."""
    return all(
        np.array_equal(one.events[name], other.events[name], equal_nan=True) for name in ("time_s", "kind", "job")
    )


def test_the_types_of_arguments_are_those_of_the_fields() -> None:
    assert Fields.__annotations__.keys() == DEFAULTS.keys()


@pytest.mark.parametrize("name", GIVEN)
def test_a_run_is_made_again_from_its_record(tmp_path: Path, name: str) -> None:
    record = labkit.simulate("demo", cluster="demo", scheduler="srtf", runs=tmp_path, **GIVEN[name])
    again = labkit.simulate(Scenario.of_run(load(record.info.run, runs=tmp_path)), scheduler="srtf")
    assert same(record, again)
    assert len(record.events) > 100


@pytest.mark.parametrize("name", GIVEN)
def test_a_scenario_is_written_down_and_read_again(tmp_path: Path, name: str) -> None:
    asked = Scenario.of("demo", cluster="demo", **GIVEN[name])
    file = tmp_path / "asked.json"
    file.write_text(json.dumps(asked.plain()))
    assert same(Experiment.of(asked).run("fifo"), Experiment.of(Scenario.read(file)).run("fifo"))


def test_what_a_scenario_cannot_write_down_is_given_again(tmp_path: Path) -> None:
    asked = {"cluster": labkit.build("demo"), "cadence": at_events(gap_s=5.0)}
    record = labkit.simulate("demo", scheduler="fifo", runs=tmp_path, **asked)
    kept = load(record.info.run, runs=tmp_path)
    with pytest.raises(InputError, match="its cluster, cadence came from Python; give it again"):
        Scenario.of_run(kept)
    assert same(record, labkit.simulate(Scenario.of_run(kept, **asked), scheduler="fifo"))


def test_parts_say_the_same_as_plain_numbers() -> None:
    plain = Experiment.of("demo", cluster="demo", start_s=5.0, mtbf_s=3e4, mttr_s=300.0, slot_s=60.0)
    parts = Experiment.of(
        "demo", cluster="demo", overheads=Overheads(5.0), faults=Faults(3e4, 300.0), cadence=every_slot(60.0)
    )
    assert (plain.overheads, plain.faults, plain.cadence) == (parts.overheads, parts.faults, parts.cadence)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"load": "2"}, "arrival_rate is '2'; expected a factor > 0"),
        ({"first": 0}, "first is 0; expected a whole number >= 1."),
        ({"any_type": 1}, "any_type is 1; expected True or False."),
        ({"slot_s": True}, "slot_s is True; expected a number."),
        ({"seed": -1}, "seed is -1; expected a whole number >= 0."),
        ({"arrival_rat": 2}, "unknown option of a simulation 'arrival_rat'. Did you mean 'arrival_rate'?"),
        ({"arrival_rate": 2, "load": 2}, "arrival_rate and load, its former name, are given"),
        ({"overheads": "dlrover", "start_s": 3.0}, "overheads and start_s are given; expected one of them."),
        ({"mtbf_s": 3.0}, "these go together: mtbf_s, mttr_s, checkpoint_s"),
        ({"speed_error": 0.1}, "these go together: period_s, speed_error"),
    ],
)
def test_a_value_that_cannot_be_is_told_in_a_line(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as told:
        Experiment.of("demo", cluster="demo", **fields)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("load = 2", 'holds no scenario; expected at least trace = "demo"'),
        ('trace = "demo"\narival_rate = 2', "Did you mean 'arrival_rate'?"),
        ("trace = ", "cannot be read"),
        ('trace = "demo"\nown = ["speed"]', "its speed came from Python; give it again."),
    ],
)
def test_a_file_that_holds_none_is_told_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError, match=re.escape(said)):
        Scenario.read(tmp_path / "mine.toml")


def test_a_record_leads_to_no_file_and_no_code_without_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    record = labkit.simulate("demo", cluster="demo", scheduler="fifo", runs=tmp_path)
    told = {"trace": "demo", "cluster": "demo", "seed": 0}
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Speed: ...\n")
    for odd in ({"speed": f"{tmp_path}/evil.py:Speed"}, {"throughputs": "/etc/hostname"}, {"cluster": "/etc/hosts"}):
        record.info.config["scenario"] = told | odd
        with pytest.raises(InputError, match=r"a stored record names the .*add --trust"):
            Scenario.of_run(record)
    assert not (tmp_path / "ran").exists()


def test_what_is_typed_beside_a_scenario_stands_in_for_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('trace = "demo"\ncluster = "demo"\nload = 2.0\nfirst = 20\n')
    words = ["compare", "--scenario", str(tmp_path / "mine.toml"), "--schedulers", "fifo", "--json"]
    both = [json.loads(command(*words, *more, cwd=tmp_path).stdout) for more in ([], ["--arrival-rate", "1.0"])]
    alone = labkit.compare("demo", cluster="demo", schedulers="fifo", first=20)[0].summary["mean_jct_s"]
    assert both[1]["mean_jct_s"] == alone != both[0]["mean_jct_s"]


def test_every_option_goes_with_one_seed_and_with_several(tmp_path: Path) -> None:
    words = ["compare", "demo", "--schedulers", "fifo,srtf", "--prices", "v100=2,p100=1,k80=0.5", "--checkpoint", "600"]
    words += ["--mtbf", "40000", "--mttr", "600", "--first", "20", "--json"]
    one = [json.loads(line) for line in command(*words, cwd=tmp_path).stdout.splitlines()]
    many = [
        json.loads(line) for line in command(*words, "--seeds", "3", "--workers", "0", cwd=tmp_path).stdout.splitlines()
    ]
    assert [row["scheduler"] for row in one] == ["fifo", "srtf"]
    assert {row["scheduler"]: row["n"] for row in many} == {"fifo": 3, "srtf": 3, "(bound)": 3}


DUMMY = '    zeal: float = _option(0.5, "How eager it is.", float, least=0)\n    seed: int = _option('
HOSTS = '[[hosts]]\nname = "nowhere"\ngpus = 8\ncpus = 64\nmemory_gb = 256\nssh = { address = "192.0.2.1" }\n'
SEEN = """
import importlib.util
import json
import sys
from pathlib import Path
from typer.testing import CliRunner
from labkit.cli.app import app
import labkit
run = lambda *words: CliRunner().invoke(app, list(words), env={"COLUMNS": "200"}, catch_exceptions=False)
for words in (["compare"], ["simulate"], ["replay"], ["deploy"], ["train-policy"]):
    assert "--zeal" in run(*words, "--help").output, words
asked = ["demo", "--zeal", "0.75"]
asked += ["--seeds", "2", "--mtbf", "40000", "--mttr", "600", "--schedulers", "fifo", "--workers", "0", "--json"]
assert '"zeal": 0.75' in run("compare", *asked).output
record = labkit.simulate("demo", cluster="demo", scheduler="fifo", zeal=0.25)
assert record.info.config["scenario"]["zeal"] == 0.25
table = labkit.sweep(labkit.Grid(schedulers="fifo", trace="demo", cluster="demo", zeal=[0.1, 0.2]), workers=0)
assert list(table["zeal"]) == [0.1, 0.2]
words = ["--trace", "poisson(5, per_hour=12)", "--cluster", "demo", "--schedulers", "fifo", "--folder", "cells"]
swept = run("sweep", *words, "--set", "zeal=0.3,0.4", "--workers", "0", "--json").output
swept = [json.loads(line) for line in swept.splitlines() if line[0] == "{"]
assert {row["zeal"] for row in swept} == {0.3, 0.4}
planned = run("deploy", "testbed", "--inventory", "hosts.toml", "--schedulers", "fifo", "--zeal", "0.6", "--dry-run")
assert (planned.exit_code, "nothing was done" in planned.output) == (0, True), planned.output
words = ["--trace", "dl2_jobs('testbed_6n')", "--cluster", "dl2-6n", "--lessons", "1", "--rounds", "0"]
run("train-policy", "dl2", *words, "--held-out", "0", "--zeal", "0.9", "--out", "w.safetensors")
assert json.loads(run("weights", "show", "w.safetensors", "--json").output)["metadata"]["scenario"].count('"zeal": 0.9')
if importlib.util.find_spec("mkdocs"):
    spec = importlib.util.spec_from_file_location("site_hooks", Path(sys.argv[1]) / "docs" / "site_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    assert "".join(hooks.command_pages().values()).count("| `--zeal` | How eager it is. | `0.5` |") == 5
"""


def test_an_option_is_defined_in_one_file_and_is_there_everywhere(tmp_path: Path) -> None:
    """A.2 of the review: it took 12 files."""
    shutil.copytree(ROOT / "labkit", tmp_path / "labkit", ignore=shutil.ignore_patterns("__kernels__"))
    home = tmp_path / "labkit" / "experiment" / "scenario.py"
    text = home.read_text()
    assert text.count("    seed: int = _option(") == 1
    home.write_text(text.replace("    seed: int = _option(", DUMMY))
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    kernels = os.environ.get("LABKIT_KERNELS", str(ROOT / "labkit" / "__kernels__"))
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "LABKIT_KERNELS": kernels}
    (tmp_path / "hosts.toml").write_text(HOSTS)
    done = subprocess.run(
        [sys.executable, "-c", SEEN, str(ROOT)], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_jobs_of_python_are_a_trace_like_any_other() -> None:
    jobs = Jobs.of(arrival_s=[0, 0, 5], total_steps=[60, 60, 30], duration_s=[60, 60, 30], n_workers=4)
    one = labkit.simulate(Scenario.of(jobs, cluster="no_network(1)"), scheduler="fifo")
    assert same(one, labkit.simulate(jobs, cluster="no_network(1)", scheduler="fifo"))
    with pytest.raises(InputError, match="jobs is a int"):
        Scenario.of(3)  # type: ignore[arg-type]


def test_options_have_help_and_a_kind() -> None:
    for name, option in OPTIONS.items():
        assert option.help.endswith(".") or option.help[-1].isalnum(), name
        assert option.kind in (float, int, bool, str, Path), name


def test_the_former_name_of_the_arrival_rate_still_works_in_python_files_sweeps_and_commands(tmp_path):
    def row(option: str) -> dict[str, object]:
        words = ("poisson(6, per_hour=60)", "--cluster", "demo", "--schedulers", "fifo", "--json", option, "2")
        return {key: value for key, value in json.loads(command("compare", *words, cwd=tmp_path).stdout).items()
                if not key.endswith("wall_s")}  # fmt: skip

    now = Scenario.of("demo", cluster="demo", arrival_rate=2)
    (tmp_path / "former.toml").write_text('trace = "demo"\ncluster = "demo"\nload = 2\n')
    assert Scenario.of("demo", cluster="demo", load=2).plain() == now.plain()
    assert Scenario.read(tmp_path / "former.toml").plain() == now.plain()
    assert split({"trace": "demo", "load": 2, "seed": 0}) == ({"arrival_rate": 2}, {})
    assert row("--load") == row("--arrival-rate") != row("--seed")
