"""Deploying: only what changed travels, what works goes on working, and what goes wrong has a name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.testbed.install import build, install, python_of, sweep
from labkit.testbed.inventory import Inventory
from labkit.testbed.onhost import source
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.host_messages import ProgramFault, answer_in
from tests.hang import HANG_S
from tests.testbed.fabbing import copied, elsewhere


@pytest.fixture
def folder(short_folder: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder for hosts of one test."""
    made = short_folder / "env" / str(abs(hash(request.node.name)) % 10**8)
    made.mkdir(parents=True)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def one(bed: Inventory, folder: Path) -> Iterator[Fleet]:
    """One host of the bed, with a folder of its own."""
    with Fleet(elsewhere(bed.only("h0"), folder=str(folder))) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A copy of labkit whose files may be changed, put back after each test that changes one."""
    return copied(tmp_path_factory.mktemp("checkout"), only=("labkit", "pyproject.toml")) / "labkit"


@pytest.fixture
def changed(package: Path) -> Iterator[Path]:
    path = package / "topology" / "export.py"
    before = path.read_text()
    path.write_text(before + "\nCHANGED = 1\n")
    yield package
    path.write_text(before)


def version_there(fleet: Fleet, host: str = "h0") -> str:
    asked = "import importlib.metadata, labkit; print(importlib.metadata.version('labkit'), labkit.__file__)"
    answers = fleet.run(lambda machine: [python_of(machine), "-c", asked], only=[host]).checked()
    version, path = answers[host].stdout.split(maxsplit=1)
    assert "/env/" in path
    return version


def test_the_second_deploy_asks_one_thing_and_copies_nothing(bed, folder, monkeypatch):
    with Fleet(elsewhere(bed, folder=f"~/{folder.name}")) as fleet:
        first = install(fleet).checked()
        assert {row.numbers["files"] for row in first} == {len(build().files)}
        listed = fleet.run(["sh", "-c", 'cd && find "$1" -printf "%p %T@\\n"', "sh", folder.name]).checked()
        commands = []
        run = fleet.run
        monkeypatch.setattr(fleet, "run", lambda argv, **more: commands.append(argv) or run(argv, **more))
        second = install(fleet).checked()
        assert [row.did.split()[0] for row in second] == ["unchanged"] * 4
        assert {row.numbers["bytes"] for row in second} == {0}
        assert len(commands) == 1
        again = run(["sh", "-c", 'cd && find "$1" -printf "%p %T@\\n"', "sh", folder.name]).checked()
        assert [row.stdout for row in again] == [row.stdout for row in listed]
        run(["rm", "-r", f"~/{folder.name}"]).checked()


def test_only_what_changed_travels_and_the_rest_is_taken_from_there(one, package, request):
    install(one, package=package).checked()
    before = version_there(one)
    changed = request.getfixturevalue("changed")
    outcome = install(one, package=changed).checked()["h0"]
    assert outcome.numbers["files"] == 3  # the file, and two of metadata that name the version
    assert outcome.numbers["bytes"] < 100_000  # most of it is the list of all files
    after = version_there(one)
    assert before != after == build(changed).version


def test_going_back_to_an_older_checkout_sends_nothing(one, package, request):
    install(one, package=package).checked()
    old = build(package).version
    file = package / "topology" / "export.py"
    before = file.read_text()
    install(one, package=request.getfixturevalue("changed")).checked()
    assert version_there(one) != old
    file.write_text(before)
    outcome = install(one, package=package).checked()["h0"]
    assert outcome.did.startswith("placed")
    assert outcome.numbers["files"] == 0
    assert version_there(one) == old


def test_what_was_damaged_on_a_host_is_mended(one, package, folder):
    hash = build(package).hash
    install(one, package=package).checked()
    (folder / "env" / hash / "lib" / "labkit" / "core" / "errors.py").write_text("broken")
    outcome = install(one, package=package).checked()["h0"]
    assert outcome.numbers["files"] == 1
    assert version_there(one) == build(package).version
    assert set(os.listdir(folder / "env")) == {".lock", hash, "current"}


def test_another_labkit_in_the_working_folder_does_not_hide_the_deployed_one(one, folder):
    install(one).checked()
    (folder / "labkit.py").write_text("raise SystemExit('hidden')")
    python = python_of(one.inventory["h0"])
    answers = one.run(["sh", "-c", 'cd "$1" && "$2" -m labkit --help', "sh", str(folder), python])
    assert answers.ok, answers


def test_a_deploy_that_was_cut_off_leaves_the_old_labkit_working(one, package, changed, folder):
    """What follows on stdin ends in the middle, as when a connection breaks."""
    install(one, package=package).checked()
    before = sorted(os.listdir(folder / "env"))
    order = {"hash": "0" * 16, "version": "0", "base": sys.executable, "files": {"a": "b"}, "sent": [], "bytes": 1000}
    said = subprocess.run(
        [sys.executable, "-c", source("receive"), str(folder)],
        input=json.dumps(order).encode() + b"\n" + b"x" * 500, capture_output=True, check=True,
    )  # fmt: skip
    assert "500 of 1000 bytes" in answer_in(said.stdout, ProgramFault).error
    assert sorted(os.listdir(folder / "env")) == before
    assert version_there(one) == build(package).version


def test_what_a_killed_deploy_left_half_done_is_removed_by_the_next(one, folder):
    left = folder / "env" / f".making-{build().hash}"
    (left / "lib" / "labkit").mkdir(parents=True)
    (left / "lib" / "labkit" / "half.py").write_text("x")
    install(one).checked()
    assert not left.exists()
    assert not list((folder / "env").rglob("half.py"))


def test_two_deploys_at_once_both_succeed(bed, folder):
    found = []

    def once():
        with Fleet(elsewhere(bed.only("h0"), folder=str(folder))) as fleet:
            found.append(install(fleet))

    threads = [threading.Thread(target=once) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert [outcomes.ok for outcomes in found] == [True] * 3
    assert set(os.listdir(folder / "env")) == {".lock", build().hash, "current"}


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 9 MB, on which labkit fits once."""
    disk = folder / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=9m", "none", str(disk)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a disk of our own needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_the_old_labkit_goes_on(bed, small_disk, package, request):
    with Fleet(elsewhere(bed.only("h0"), folder=str(small_disk / "labkit"))) as fleet:
        install(fleet, package=package).checked()
        changed = request.getfixturevalue("changed")
        free = shutil.disk_usage(small_disk).free
        (small_disk / "filler").write_bytes(bytes(max(0, free - 500_000)))
        outcome = install(fleet, package=changed)["h0"]
        assert not outcome.ok
        assert "No space left" in outcome.did
        assert "MB free" in outcome.did
        assert "make room" in outcome.hint
        assert version_there(fleet) != build(changed).version
        assert len(os.listdir(small_disk / "labkit" / "env")) == 3
        (small_disk / "filler").unlink()
        os.sync()
        sweep(fleet).checked()
    small_disk.chmod(0o700)


@pytest.mark.parametrize("place", ["a file", "nowhere"])
def test_a_folder_that_cannot_be_written_is_named(bed, folder, place):
    (folder / "taken").write_text("")
    path = str(folder / "taken" / "x") if place == "a file" else "/proc/labkit"
    with Fleet(elsewhere(bed.only("h0,h1"), folder=path)) as fleet:
        outcomes = install(fleet)
    for outcome in outcomes:
        assert path.split("/x")[0] in outcome.did
        assert outcome.hint


def test_a_host_without_the_python_that_the_inventory_names_says_so(bed):
    with Fleet(elsewhere(bed.only("h0"), python="/no/such/python")) as fleet:
        outcome = install(fleet)["h0"]
    assert outcome.did == "there is no program /no/such/python"
    assert "python = " in outcome.hint


def test_a_python_that_is_too_old_is_named(bed, folder):
    old = folder / "old"
    trick = "import sys; t = sys.argv[2]; sys.argv[:3] = ['-c']; sys.version_info = (3, 9, 1); exec(t)"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{trick}" "$@"\n')
    old.chmod(0o755)
    with Fleet(elsewhere(bed.only("h0"), python=str(old), folder=str(folder))) as fleet:
        outcome = install(fleet)["h0"]
    assert outcome.did == f"{old} is Python 3.9.1"
    assert "3.11 or newer" in outcome.hint


def test_one_host_that_is_down_does_not_stop_the_others(bed, folder):
    machines = elsewhere(bed, folder=f"~/{folder.name}").machines
    broken = Inventory(bed.path, (machines[0], elsewhere(bed, port=1).machines[1], *machines[2:]), bed.known_hosts)
    with Fleet(broken) as fleet:
        outcomes = install(fleet)
        assert [row.ok for row in outcomes] == [True, False, True, True]
        assert "cannot be reached" in outcomes["h1"].did
        fleet.run(["rm", "-r", f"~/{folder.name}"], only=["h0", "h2", "h3"]).checked()


def tiny(house: Path, name: str = "tiny") -> None:
    """Put a wheel of a library of one module into a folder."""
    house.mkdir(exist_ok=True)
    with zipfile.ZipFile(house / f"{name}-1.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "SIZE = 1\n")
        wheel.writestr(f"{name}-1.5.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        wheel.writestr(f"{name}-1.5.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.5.dist-info/RECORD", "")


@pytest.mark.slow
def test_what_a_host_lacks_is_installed_from_a_wheelhouse_without_a_network(one, folder, tmp_path):
    tiny(tmp_path / "house")
    lines = []
    order = {"wheelhouse": tmp_path / "house", "requirements": ("tiny>=1.5",)}
    install(one, **order, stream=lambda host, line: lines.append(line)).checked()
    assert any("lacks tiny>=1.5" in line for line in lines)
    asked = "import tiny, labkit, sys; print(tiny.SIZE, sys.prefix)"
    told = one.run([python_of(one.inventory["h0"]), "-c", asked]).checked()["h0"].stdout
    assert told.split()[0] == "1"
    assert f"{folder}/env/base-" in told
    assert not (folder / "env" / "wheels").exists()
    assert install(one, **order)["h0"].did.startswith("unchanged")


@pytest.mark.slow
def test_pip_on_a_host_asks_the_index_of_its_own_pip_conf_and_the_one_that_is_named(one, up, folder, tmp_path):
    for name in ("tiny", "weeny"):
        place = tmp_path / f"{name}-index" / name
        place.mkdir(parents=True)
        tiny(place, name)
        (place / "index.html").write_text(f'<a href="{name}-1.5-py3-none-any.whl">{name}-1.5-py3-none-any.whl</a>')
    config = up.home("h0") / ".config/pip/pip.conf"
    config.parent.mkdir(parents=True)
    config.write_text(f"[global]\nindex-url = {(tmp_path / 'tiny-index').as_uri()}\n")
    try:
        index = (tmp_path / "weeny-index").as_uri()
        install(one, requirements=("tiny>=1.5", "weeny>=1.5"), index=index).checked()
    finally:
        config.unlink()
    told = one.run([python_of(one.inventory["h0"]), "-c", "import tiny, weeny; print(tiny.SIZE + weeny.SIZE)"])
    assert told.checked()["h0"].stdout == "2\n"


def test_an_index_that_is_none_is_refused_before_anything_is_done(one, tmp_path):
    tiny(tmp_path)
    for wrong in ("--index", "somewhere", "https://a b", "http://x\n"):
        with pytest.raises(InputError, match="expected https://"):
            install(one, index=wrong)
    with pytest.raises(InputError, match="no wheelhouse with it"):
        install(one, index="https://index.example", wheelhouse=tmp_path)


@pytest.mark.slow
def test_a_wheelhouse_that_lacks_something_is_named_and_nothing_stays(one, folder, tmp_path):
    tiny(tmp_path / "house")
    outcome = install(one, wheelhouse=tmp_path / "house", requirements=("tiny>=1.5", "absent>=2"))["h0"]
    assert "pip could not install" in outcome.did
    assert "the wheelhouse lacks something" in outcome.hint
    assert sorted(os.listdir(folder / "env")) == [".lock", "wheels"]
    sweep(one).checked()
    assert os.listdir(folder / "env") == [".lock"]


def test_an_empty_wheelhouse_is_refused_before_anything_is_done(one, tmp_path):
    with pytest.raises(InputError, match="holds no wheel"):
        install(one, wheelhouse=tmp_path)


def test_gc_removes_what_is_unused_and_never_what_runs(one, package, request, folder):
    install(one, package=package).checked()
    old = build(package).hash
    with one.stream("h0", [python_of(one.inventory["h0"]), "-c", "print(1, flush=True); input()"]) as running:
        assert running.read(2) == b"1\n"
        changed = request.getfixturevalue("changed")
        new = build(changed).hash
        install(one, package=changed).checked()
        (folder / "env" / "notes").mkdir()
        assert sweep(one)["h0"].numbers["environments"] == 0
        assert old in os.listdir(folder / "env")
        running.end()
        while running.read(100):
            pass
    while one.run(["sh", "-c", 'grep -lz "$1" /proc/[0-9]*/environ 2>/dev/null', "sh", f"{folder}/env/{old}/lib"])[
        "h0"
    ].stdout:
        pass
    assert sweep(one, dry_run=True)["h0"].numbers["environments"] == 1
    assert old in os.listdir(folder / "env")
    assert sweep(one)["h0"].numbers["environments"] == 1
    assert sorted(os.listdir(folder / "env")) == sorted([".lock", "current", new, "notes"])
    assert version_there(one) == build(changed).version


@pytest.mark.parametrize("name", ["a b", "it's", "$HOME", "`id`; x", '"q"', "ünï"])
def test_odd_names_of_folders_stay_names(bed, folder, name):
    with Fleet(elsewhere(bed.only("h0"), folder=str(folder / name))) as fleet:
        install(fleet).checked()
        assert version_there(fleet) == build().version
        assert sweep(fleet).ok
    assert os.listdir(folder) == [name]


def test_a_folder_that_pythons_path_cannot_hold_is_refused(bed, folder):
    with Fleet(elsewhere(bed.only("h0"), folder=str(folder / "a:b"))) as fleet:
        outcome = install(fleet)["h0"]
    assert "has a ':'" in outcome.did
    assert os.listdir(folder) == []


def test_a_deploy_that_is_killed_while_it_receives_changes_nothing(one, package, folder):
    install(one, package=package).checked()
    before = sorted(os.listdir(folder / "env"))
    order = {"hash": "0" * 16, "version": "0", "base": sys.executable, "files": {}, "sent": [], "bytes": 10_000}
    machine = one.inventory["h0"]
    says_its_number = "import os, sys; print(os.getpid(), flush=True); " + f"exec({source('receive')!r})"
    with one.stream(machine, [machine.python, "-c", says_its_number, str(folder)]) as stream:
        number = int(stream.read(20))
        stream.write(json.dumps(order).encode() + b"\n" + b"x" * 500)
        os.kill(number, signal.SIGKILL)
        while stream.read(100):
            pass
    assert sorted(os.listdir(folder / "env")) == before
    assert install(one, package=package)["h0"].did.startswith("unchanged")
