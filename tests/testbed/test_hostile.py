"""Hosts that lie, over real SSH servers: nothing is written outside of the target, and each lie is one line."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from labkit.elastic.checkpoint.manifest import Manifest
from labkit.testbed.doctor import Severity, examine
from labkit.testbed.errors import FileError, HostMessageError
from labkit.testbed.install import install
from labkit.testbed.inventory import Inventory
from labkit.testbed.run import checkpoint_cache as backups
from labkit.testbed.run.checkpoint_cache import SAVED, CheckpointCache, refuse_incomplete
from labkit.testbed.run.host_files import fetch
from labkit.testbed.ssh import host_messages as entries
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.outcomes import HostOutcome
from tests.testbed import liar


def tree(place: Path) -> dict[str, bytes | None]:
    """Return all that is below a folder, with the contents of files."""
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in sorted(place.rglob("*"))
    }


@pytest.fixture
def lied_to(bed: Inventory, tmp_path: Path) -> Iterator[tuple[Path, object]]:
    """A place for runs beside one that cannot be written, and what makes a fleet of one host that lies."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    fleets = []

    def lying(lie: str) -> Fleet:
        program = liar.write(tmp_path / "python", lie, outside)
        (machine,) = (each for each in bed if each.name == "h0")
        fleets.append(Fleet(replace(bed, machines=(replace(machine, python=str(program)),))))
        return fleets[-1]

    yield tmp_path, lying
    for fleet in fleets:
        fleet.close()


def refused(place: Path, fleet: Fleet, **options: object) -> HostOutcome:
    """Fetch from a host that lies; return its row, after looking for what it may have written."""
    before = tree(place)
    row = fetch(fleet, runs=place / "a/b/c/runs", **options)["h0"]
    after = {path: content for path, content in tree(place).items() if path not in before}
    assert all(content is None and ("/runs" in path) for path, content in after.items()), after
    assert not any("h0" in path for path in after), "not even an empty folder of that host"
    assert {path: tree(place)[path] for path in before} == before
    assert not row.ok, row
    assert row.did
    assert (row.did + row.hint).isprintable(), "one line, and nothing that a terminal obeys"
    assert len(row.did) < 500
    return row


@pytest.mark.parametrize("lie", liar.NAMES)
def test_names_of_runs_that_a_host_tells_are_names_or_nothing_comes_from_it(lied_to, lie):
    place, lying = lied_to
    assert "a name that no run can have" in refused(place, lying(lie)).did


@pytest.mark.parametrize("lie", liar.ANSWERS)
def test_an_answer_that_is_none_is_refused_in_bounded_memory(lied_to, lie):
    place, lying = lied_to
    assert liar.ANSWERS[lie] in refused(place, lying(lie)).did


@pytest.mark.parametrize("lie", liar.ENTRIES)
def test_what_is_no_plain_file_below_the_target_is_refused_with_all_that_came_with_it(lied_to, lie, monkeypatch):
    place, lying = lied_to
    monkeypatch.setattr(entries, "MAX_ENTRIES", 100)
    assert liar.ENTRIES[lie] in refused(place, lying(lie)).did


def test_a_host_that_has_more_than_is_taken_fills_no_disk(lied_to):
    place, lying = lied_to
    assert "more than 0.001 GB" in refused(place, lying("oversized_frame"), most_gb=0.001).did


@pytest.mark.parametrize("where", ["run", "run/hosts", "run/hosts/h0"])
def test_links_that_lie_in_the_target_are_not_followed(fleet, up, tmp_path, where):
    place = up.home("h0") / ".labkit/runs/linked"
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").write_text("{}")
    (tmp_path / "outside/h0").mkdir(parents=True)
    (tmp_path / "outside/h0/mine").write_text("mine")
    link = tmp_path / "runs" / where.replace("run", "linked", 1)
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "outside")
    row = fetch(fleet, "linked", runs=tmp_path / "runs")["h0"]
    assert not row.ok
    assert "is a symbolic link" in row.did
    assert tree(tmp_path / "outside") == {"h0": None, "h0/mine": b"mine"}
    link.unlink()
    assert fetch(fleet, "linked", runs=tmp_path / "runs")["h0"].ok


def test_one_host_that_lies_does_not_keep_the_others_from_being_fetched(lied_to, bed, up):
    place, lying = lied_to
    (evil,) = lying("absolute_run").inventory
    run = up.home("h1") / ".labkit/runs/honest"
    run.mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text("{}")
    with Fleet(replace(bed, machines=(evil, bed["h1"]))) as fleet:
        rows = fetch(fleet, "honest", runs=place / "runs")
    assert [row.ok for row in rows] == [False, True]
    assert (place / "runs/honest/hosts/h1/run.json").read_text() == "{}"


def test_hosts_that_do_not_answer_or_show_another_key_are_named_under_fetch(bed, up, tmp_path):
    lines = bed.known_hosts.read_text().splitlines()
    swapped = [lines[0], f"{lines[1].split()[0]} {' '.join(lines[0].split()[1:])}", *lines[2:]]
    (tmp_path / "known").write_text("\n".join(swapped) + "\n")
    machines = (bed["h1"], replace(bed["h2"], port=1), replace(bed["h3"], python="/nowhere/python"))
    for folder in (up.home(name) / ".labkit/runs/seen" for name in ("h1", "h2", "h3")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text("{}")
    with Fleet(replace(bed, machines=machines, known_hosts=tmp_path / "known")) as fleet:
        for rows in (fetch(fleet, runs=tmp_path / "runs"), fetch(fleet, "seen", runs=tmp_path / "runs")):
            assert [row.ok for row in rows] == [False] * 3
            assert "Another machine may be answering in its place" in rows["h1"].did
            assert "cannot be reached" in rows["h2"].did
            assert "no program" in rows["h3"].did
    assert not tree(tmp_path / "runs")
    with Fleet(replace(bed, machines=(*machines, bed["h0"]), known_hosts=tmp_path / "known")) as fleet:
        (up.home("h0") / ".labkit").mkdir(mode=0o700, exist_ok=True)
        (up.home("h0") / ".labkit/runs/seen").mkdir(parents=True, exist_ok=True)
        (up.home("h0") / ".labkit/runs/seen/run.json").write_text("{}")
        rows = fetch(fleet, "seen", runs=tmp_path / "runs")
        assert [row.ok for row in rows] == [False] * 3 + [True]
        assert "another key" in rows["h1"].did


# --- checkpoints


def checkpoint(place: Path, step: int) -> bytes:
    """Write a checkpoint as a job does, as far as a backup looks at it; return the content of its one file."""
    folder = place / SAVED / f"step-{step:06d}"
    folder.mkdir(parents=True)
    content = hashlib.sha256(str(step).encode()).digest() * 20_000
    made = Manifest(step, "x", "sgd", {}, [], [], {"ps-0": len(content)}, "x")
    (folder / "ps-0.blocks").write_bytes(content)
    (folder / "queue.json").write_text("{}")
    (folder / "manifest.json").write_bytes(made.to_json())
    return content


def kept(path: Path, step: int) -> bytes:
    with tarfile.open(path) as archive:
        file = archive.extractfile(f"{SAVED}/step-{step:06d}/ps-0.blocks")
        assert file is not None
        return file.read()


def test_a_backup_replaces_the_one_before_only_once_it_is_verified(lied_to, bed, up, caplog):
    place, lying = lied_to
    there = up.home("h0") / "ckpt"
    first = checkpoint(there, 100)
    with Fleet(bed) as fleet:
        honest = CheckpointCache(fleet, place / "kept", run="r")
        honest.fetch(bed["h0"], folder=str(there), task="job-0")
    assert kept(honest.path("job-0"), 100) == first
    before = tree(place)
    for lie, told in liar.CHECKPOINTS.items():
        fleet = lying(lie)
        with pytest.raises(
            FileError, match=rf"checkpoints of job-0 cannot be read \(the one before is kept\): .*{told}"
        ):
            CheckpointCache(fleet, place / "kept", run="r").fetch(
                fleet.inventory["h0"], folder=str(there), task="job-0"
            )
        assert {path: content for path, content in tree(place).items() if path != "python"} == before, lie
        assert "the one before is kept" in caplog.records[-1].getMessage(), "the terminal is told at once"
    second = checkpoint(there, 200)
    (there / SAVED / "step-000200/manifest.json").rename(there / "aside")  # the one before is still whole
    with Fleet(bed) as fleet:
        CheckpointCache(fleet, place / "kept", run="r").fetch(bed["h0"], folder=str(there), task="job-0")
        assert kept(honest.path("job-0"), 200) == second
        (there / SAVED / "step-000100/ps-0.blocks").write_bytes(first[:-1])
        with pytest.raises(FileError, match="has no complete checkpoint"):
            CheckpointCache(fleet, place / "kept", run="r").fetch(bed["h0"], folder=str(there), task="job-0")
    assert kept(honest.path("job-0"), 100) == first
    with tarfile.open(honest.path("job-0")) as archive:
        assert all(member.isreg() or member.isdir() for member in archive)


def test_a_copy_that_is_damaged_here_is_set_aside_by_name_and_the_one_before_is_sent(tmp_path, bed, up):
    place = tmp_path
    there = up.home("h0") / "ckpt-damage"
    first = checkpoint(there, 100)
    told: list[str] = []
    with Fleet(bed) as fleet:
        cache = CheckpointCache(fleet, place / "kept", run="dmg")
        brought = partial(cache.bring, bed["h0"], task="job-0", tell=told.append)
        assert brought() == ""
        for step in (100, 200):
            checkpoint(there, step) if step > 100 else None
            cache.fetch(bed["h0"], folder=str(there), task="job-0")
        whole = cache.path("job-0").read_bytes()
        sent = up.home("h0") / ".labkit" / brought()
        assert sent.read_bytes() == whole
        assert not told
        assert subprocess.run(["tar", "-tf", sent], stdout=subprocess.PIPE, check=True).stdout.count(b"manifest") == 2
        flipped = whole[:5000] + bytes([whole[5000] ^ 4]) + whole[5001:]
        cache.path("job-0").write_bytes(flipped)
        assert kept(up.home("h0") / ".labkit" / brought(), 100) == first, "the copy before has the first step alone"
        assert told == [
            f"damaged here: {place}/kept/job-0.tar.damaged (its SHA-256 is another one); the job continues from the "
            "copy before it"
        ]
        cache.older("job-0").write_bytes(whole[: len(whole) // 2])
        assert brought() == ""
        assert f"{place}/kept/job-0.older.tar.damaged (cut off)" in told[1]
        assert told[1].endswith("the job continues from what its host holds, else from the beginning")
        assert brought() == ""
        assert len(told) == 2, "each is told once"
        cache.path("job-0").write_bytes(whole[:-32])
        assert brought(), "a copy of an earlier labkit has no digest"
        cache.path("job-0").write_bytes(whole[: len(whole) // 2 // 10240 * 10240])
        assert brought() == ""
        assert "job-0.tar.damaged (cut off)" in told[2]
        cache.forget("job-0")
        assert not list((place / "kept").iterdir())


def test_a_backup_that_is_cut_off_is_none(lied_to, monkeypatch):
    place, lying = lied_to
    monkeypatch.setattr(backups, "PATIENCE_S", 0.5)
    fleet = lying("silent")
    with pytest.raises(Exception, match=r"no checkpoint of job-0: nothing arrived for 0.5 s"):
        CheckpointCache(fleet, place / "kept", run="r").fetch(fleet.inventory["h0"], folder="x", task="job-0")
    assert not list((place / "kept").iterdir())


def test_a_manifest_that_is_no_manifest_makes_no_checkpoint():
    for content in (b"", b"{}", b"[" * 100_000, b'{"manifest": {"files": 3}}'):
        with pytest.raises(HostMessageError):
            refuse_incomplete({}, {f"{SAVED}/step-000001/manifest.json": content})


# --- doctor and deploy


@pytest.mark.parametrize("lie", ["deep_json", "endless_noise", "old_answer", "no_runs_but_a_list", "control_run"])
def test_doctor_and_deploy_tell_of_a_host_that_lies_in_one_line(lied_to, lie):
    _, lying = lied_to
    (finding,) = examine(lying(lie), torch=False).findings
    assert (finding.host, finding.check, finding.state) == ("h0", "reach", Severity.FAULT)
    row = install(lying(lie))["h0"]
    assert not row.ok
    for text in (finding.found, finding.hint, row.did, row.hint):
        assert text.isprintable()
        assert len(text) < 600
