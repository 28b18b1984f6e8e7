"""gc removes runs that are over, and nothing else on earth."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from labkit.testbed.agent.folder_layout import LABEL
from tests.testbed.agent.looking import kill_agent, labelled, wait_for


@pytest.fixture
def over(agent):
    """Return an agent with a run that is over."""
    agent.start("old", task="t", argv=["sh", "-c", "mkdir -p a/b; echo x > a/b/c; echo y > d"])
    wait_for(lambda: agent.list("old")[0].tasks["t"].phase == "ended")
    agent.stop("old")
    return agent


def rows(agent, **options):
    return {row.run: row for row in agent.gc(older_s=0.0, **options)}


def test_a_run_that_is_over_is_removed_and_counted(over, folder):
    dry = rows(over, dry_run=True)["old"]
    assert (folder / "runs/old/t/a/b/c").exists()
    row = rows(over)["old"]
    assert (dry.removed, row.removed) == (False, True)
    assert (dry.n_files, dry.n_bytes) == (row.n_files, row.n_bytes)
    assert row.n_files == 5  # c, d, log, events, label
    assert row.n_bytes > 0
    assert list((folder / "runs").iterdir()) == []
    assert over.list() == []
    over.start("old", task="t", argv=["true"])


def test_what_goes_on_or_is_young_is_kept(over, folder):
    over.start("new", task="t", argv=["sleep", "1000"])
    over.start("leased", task="t", argv=["true"])
    wait_for(lambda: over.list("leased")[0].tasks["t"].phase == "ended")
    before = sorted(folder.glob("runs/**/*"))
    young = {row.run: row.why for row in over.gc(older_s=3600.0)}
    assert sorted(folder.glob("runs/**/*")) == before
    assert young["new"] == young["leased"] == "continues"
    assert young["old"].startswith("over for")
    assert [run for run, row in rows(over).items() if row.removed] == ["old"]
    assert len(labelled(folder)) == 1


def test_what_bears_no_label_is_never_touched(over, folder, tmp_path):
    place = folder / "runs"
    precious = tmp_path / "precious"
    (precious / "old").mkdir(parents=True)
    (precious / "old" / "thesis").write_text("years")
    (place / "mine").mkdir()
    (place / "mine" / "thesis").write_text("years")
    (place / "file").write_text("years")
    (place / "link").symlink_to(precious / "old")
    (place / "copy").mkdir()
    (place / "copy" / LABEL).write_bytes((place / "old" / LABEL).read_bytes())  # of another run
    (place / "old" / "t" / "out").symlink_to(precious)
    os.link(precious / "old" / "thesis", place / "old" / "t" / "hard")
    found = rows(over)
    assert [run for run, row in found.items() if row.removed] == ["old"]
    for name in ("mine", "file", "link", "copy"):
        assert found[name].why == "bears no label of labkit"
    assert (precious / "old" / "thesis").read_text() == "years"
    assert (place / "mine" / "thesis").read_text() == "years"
    assert (place / "file").exists()
    assert (place / "link").is_symlink()
    assert (place / "copy" / LABEL).exists()


def test_a_run_that_was_replaced_by_a_link_is_kept(over, folder, tmp_path):
    moved = tmp_path / "moved"
    (folder / "runs/old").rename(moved)
    (folder / "runs/old").symlink_to(moved)
    assert not rows(over)["old"].removed
    assert (moved / "t" / "d").exists()


def test_a_run_of_an_agent_that_died_is_removed_by_the_next(over, folder, dial):
    kill_agent(folder)
    assert rows(dial())["old"].removed


def test_what_cannot_be_removed_is_told_and_still_bears_its_label(over, folder, monkeypatch):
    from labkit.testbed.agent import sweep
    from labkit.testbed.agent.messages import FolderRow

    monkeypatch.setattr(os, "rmdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(1, "not allowed")))
    (row,) = sweep.carry_out(folder / "runs", [FolderRow(run="old", remove=True, why="over")], dry_run=False)
    assert not row.removed
    assert "could not be removed" in row.why
    monkeypatch.undo()
    assert (folder / "runs/old" / LABEL).exists()
    assert rows(over)["old"].removed


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_what_is_mounted_inside_a_run_is_not_entered(over, folder):
    inside = folder / "runs/old/t/a"
    program = f"""
import os, sys
from pathlib import Path
from labkit.testbed.agent import sweep
os.mkdir({str(inside / "mounted")!r})
if os.system("mount -t tmpfs none {inside / "mounted"}"):
    sys.exit(77)
Path({str(inside / "mounted" / "precious")!r}).write_text("years")
(row,) = sweep.carry_out(Path({str(folder / "runs")!r}), [dict(run="old", remove=True, why="")], dry_run=False)
print(row.why, Path({str(inside / "mounted" / "precious")!r}).read_text())
"""
    done = subprocess.run(["unshare", "-m", sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("nothing can be mounted here")
    assert done.stdout.strip() == "could not be removed: 'mounted' is another file system, mounted there years"


def test_a_large_run_is_removed_while_others_are_served(over, folder):
    deep = folder / "runs/old/t/many"
    deep.mkdir()
    for number in range(3000):
        (deep / str(number)).write_text("")
    assert rows(over)["old"].n_files == 3005
    assert json.loads(json.dumps(over.list())) == []
