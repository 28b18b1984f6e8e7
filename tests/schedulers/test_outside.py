"""Schedulers, placers and speed models of one's own, by name wherever a name is taken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import placers, schedulers
from labkit.core import InputError
from labkit.core.outside import _offered
from labkit.experiment import compare, simulate
from labkit.experiment.grid import Grid
from labkit.experiment.inputs import Inputs
from labkit.workloads import read

MINE = """
import numpy as np
from dataclasses import dataclass
from labkit.placers import FirstFit, Pack
from labkit.schedulers.base import requested_gangs
from labkit.speed.recorded import Recorded

@dataclass
class SmallestFirst:
    placer: object = Pack()
    most: int = 1000

    def schedule(self, snapshot):
        waiting = snapshot.waiting[: self.most]
        order = np.argsort(snapshot.table.gpus[waiting], kind="stable")
        return self.placer.place(snapshot, requested_gangs(snapshot, waiting[order]))

class Plain:
    def __init__(self, k=3):
        self.k = k

    def schedule(self, snapshot):
        return Pack().place(snapshot, requested_gangs(snapshot, snapshot.waiting))

def made(k=1):
    return Plain(k)

class Twice(Recorded):
    def speeds(self, running):
        return 2 * super().speeds(running)

class Mine(FirstFit):
    pass

class Nothing:
    pass

number = 3
"""
ROOT = Path(__file__).parents[2]
JOBS = read(ROOT / "traces" / "philly-like.csv").take(range(40))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of a user's, in which the user is."""
    (tmp_path / "mine_of_a_test.py").write_text(MINE)
    (tmp_path / "broken_of_a_test.py").write_text("import numpy\n1 / 0\n")
    (tmp_path / "needy_of_a_test.py").write_text("import no_such_package_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine", "broken", "needy"):
        monkeypatch.delitem(sys.modules, f"{name}_of_a_test", raising=False)
    return tmp_path


def test_a_class_of_ones_own_is_made_and_compared_by_name(here: Path) -> None:
    name = "mine_of_a_test:SmallestFirst(placer=spread, most=5)"
    made = schedulers.make(name)
    assert (made.placer, made.most) == (placers.Spread(), 5)  # type: ignore[attr-defined]
    records = compare(JOBS, cluster="gavel-36x3", schedulers=f"fifo,{name}", speed="recorded")
    assert [record.info.scheduler for record in records] == ["fifo", name]
    assert schedulers.open_options("mine_of_a_test:SmallestFirst(most=2)").keys() == {"placer"}


def test_functions_and_plain_classes_will_do(here: Path) -> None:
    assert schedulers.make("mine_of_a_test:Plain(k=7)").k == 7  # type: ignore[attr-defined]
    assert schedulers.make("mine_of_a_test:made").k == 1  # type: ignore[attr-defined]


def test_placers_and_speed_models_are_named_alike(here: Path) -> None:
    assert type(schedulers.make("fifo(placer='mine_of_a_test:Mine')").placer).__name__ == "Mine"  # type: ignore[attr-defined]
    jobs = JOBS.take(range(1))
    alone = simulate(jobs, cluster="gavel-36x3", scheduler="fifo", speed="recorded").table["jct_s"]
    twice = simulate(jobs, cluster="gavel-36x3", scheduler="fifo", speed="mine_of_a_test:Twice").table["jct_s"]
    assert twice.tolist() == pytest.approx((alone / 2).tolist())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mine_of_a_test:SmalestFirst", r"unknown scheduler of module mine_of_a_test 'SmalestFirst'. Did you mean 'Sm"),
        ("not_there_at_all:X", r"there is no module not_there_at_all; expected a file not_there_at_all.py in /"),
        ("broken_of_a_test:X", r"module broken_of_a_test cannot be imported: ZeroDivisionError: division by zero"),
        ("needy_of_a_test:X", r"needy_of_a_test needs the module no_such_package_at_all, which is not installed"),
        ("mine_of_a_test:", r"cannot be read; expected package.module:Name, such as mine:SmallestFirst"),
        ("no/such.py:X", r"no/such.py cannot be read \(No such file or directory\); expected a Python file, from /"),
        ("mine_of_a_test.py:Smalest", r"unknown scheduler of file mine_of_a_test.py 'Smalest'. Did you mean 'Smallest"),
        ("broken_of_a_test.py:X", r"broken_of_a_test.py cannot be imported: ZeroDivisionError: division by zero"),
        (":X", r"cannot be read; expected package.module:Name"),
        ("os:path.join", r"cannot be read; expected package.module:Name"),
        ("mine_of_a_test:Nothing", r"is a class without schedule\(\)"),
        ("mine_of_a_test:number", r"is 3; expected a class that has schedule"),
        ("mine_of_a_test:SmallestFirst(most=2, less=1)", r"unknown option of mine_of_a_test:SmallestFirst 'less'"),
        ("mine_of_a_test:SmallestFirst(__import__('os'))", r"cannot be read; expected a name, or name\(option=value"),
    ],
)
def test_what_cannot_be_had_is_told_in_one_line(here: Path, name: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        schedulers.make(name)
    assert "\n" not in str(error.value)


def test_a_speed_model_or_placer_that_is_none_is_told(here: Path) -> None:
    with pytest.raises(InputError, match=r"placer mine_of_a_test:Nothing is .*; expected a class that has place"):
        placers.make("mine_of_a_test:Nothing")
    with pytest.raises(InputError, match="speed model mine_of_a_test:Nothing cannot be made from jobs and cluster"):
        simulate(JOBS, cluster="gavel-36x3", scheduler="fifo", speed="mine_of_a_test:Nothing")
    with pytest.raises(InputError, match="speed model mine_of_a_test:number is 3; expected a class or function"):
        simulate(JOBS, cluster="gavel-36x3", scheduler="fifo", speed="mine_of_a_test:number")


@pytest.fixture
def package(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers what the user's module has."""
    info = here / "offers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[labkit.schedulers]\nsmallest = mine_of_a_test:SmallestFirst\ngone = mine_of_a_test:Gone\n"
        "[labkit.placers]\nours = mine_of_a_test:Mine\n[labkit.speeds]\ntwice = mine_of_a_test:Twice\n"
    )
    monkeypatch.syspath_prepend(str(here))
    _offered.cache_clear()


def test_what_installed_packages_offer_has_a_name_of_its_own(package: None, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(_offered.cache_clear)
    assert {"smallest", "fifo"} < set(schedulers.available())
    assert "ours" in placers.available()
    run = simulate(JOBS, cluster="gavel-36x3", scheduler="smallest(placer=ours)", speed="twice")
    assert run.n_done == len(JOBS)
    with pytest.raises(InputError, match=r"scheduler gone of offers \(mine_of_a_test:Gone\) cannot be loaded"):
        schedulers.make("gone")


def test_a_file_is_a_name_too_and_is_read_again_where_it_has_changed(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "beside_of_a_test.py").write_text("MOST = 7\n")
    own = here / "sub" / "numpy.py"  # the name of a module that is installed hides nothing
    own.write_text("from beside_of_a_test import MOST\n" + MINE)
    made = schedulers.make("sub/numpy.py:SmallestFirst(placer=spread, most=5)")
    assert (made.placer, made.most) == (placers.Spread(), 5)  # type: ignore[attr-defined]
    assert made == schedulers.make(f"{own}:SmallestFirst(placer=spread, most=5)")
    own.write_text(own.read_text().replace("k=3", "k=MOST"))
    assert schedulers.make("sub/numpy.py:Plain").k == 7  # type: ignore[attr-defined]


def test_a_file_goes_with_a_sweep_and_a_changed_one_is_another_sweep(here: Path) -> None:
    grid = Grid(schedulers=["mine_of_a_test.py:Plain(k=2)"], trace="poisson(9, per_hour=60)", cluster="demo", seeds=1)
    inputs = Inputs.of(grid)
    mine = here / "mine_of_a_test.py"
    mine.rename(here / "elsewhere.py")  # as on another host
    assert inputs.scheduler("mine_of_a_test.py:Plain(k=2)").k == 2  # type: ignore[attr-defined]
    mine.write_text(MINE + "\n")
    assert Inputs.of(grid).meanings(grid) != inputs.meanings(grid)


def test_commands_take_it_too_and_the_workers_of_a_sweep(here: Path) -> None:
    """By the name of a module, and by that of a file."""
    command = [str(Path(sys.executable).with_name("labkit"))]
    trace, own = str(ROOT / "traces" / "demo.csv"), [f"mine_of_a_test{suffix}:SmallestFirst" for suffix in ("", ".py")]
    names = ",".join(["fifo", *own])
    told = subprocess.run(
        [*command, "compare", trace, "--cluster", "demo", "--schedulers", names, "--json", "--runs", "runs"],
        capture_output=True, text=True, check=True, cwd=here,
    )  # fmt: skip
    assert [json.loads(line)["scheduler"] for line in told.stdout.splitlines()] == ["fifo", *own]
    told = subprocess.run(
        [*command, "sweep", "--trace", "poisson(9, per_hour=60)", "--cluster", "demo", "--schedulers", names,
         "--seeds", "2", "--workers", "2", "--folder", "sweep", "--json"],
        capture_output=True, text=True, check=True, cwd=here,
    )  # fmt: skip
    assert {json.loads(line)["scheduler"] for line in told.stdout.splitlines()} == {"fifo", *own, "(bound)"}


def test_an_option_in_the_place_of_a_scheduler_is_told_with_the_schedulers_that_have_it() -> None:
    with pytest.raises(InputError, match=r"unknown scheduler 'backfill', which is an option: fifo\(backfill=True\)"):
        schedulers.make("backfill")
    with pytest.raises(InputError, match=r"unknown scheduler 'fifoo'\. Did you mean 'fifo'\?"):
        schedulers.make("fifoo")
