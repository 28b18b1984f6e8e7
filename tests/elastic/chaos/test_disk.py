"""C1, C2: a full or broken disk, and checkpoints that are no good any more: training goes on, or says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from labkit.elastic import JobError
from labkit.elastic.process.fault_injection import InjectedFault
from tests.elastic.chaos.story import Story, alive, many
from tests.hang import HANG_S


@pytest.mark.parametrize("seed", many(1))
def test_training_goes_on_when_nothing_can_be_written_and_says_so(seed: int) -> None:
    """Each write of a checkpoint fails in turn, then the controller's own, then its events: nothing good is lost."""
    n = 1 + seed % 3
    faults = [
        InjectedFault("controller", "disk.write", n, "ENOSPC"),
        InjectedFault("controller", "disk.wrote", 3 * n, "EDQUOT"),
        InjectedFault("controller", "disk.sync", 3 + n, "EIO"),
        InjectedFault("controller", "disk.rename", n, "EIO"),
        InjectedFault("controller", "controller.write", 8 + n, "ENOSPC", times=3),
        InjectedFault("controller", "controller.event", 60, "ENOSPC", times=5),
    ]
    with Story("C1 no space, input/output error", faults=faults, save_every=4) as story:
        for _ in range(4):
            story.happens("unsaved")
        story.happens("saved")
        story.struck(5).scale(servers=1, workers=1).happens("scaled")
        story.struck(4).stepped(3).kill(next(iter(story.owners().values())))
        story.happens("began")
        result = story.stepped(2).finish()
        why = [e["why"] for e in result.events if e["event"] == "unsaved"]
        assert "No space left on device" in why[0]
        assert "the last good one is step-" in why[0]
        assert any(e["event"] == "unwritten" for e in result.events)
        began = [e["version"] for e in result.events if e["event"] == "began"]
        assert began[-1] >= 4, "it went back to one that was written between the errors"


AMID = [
    ("controller", "disk.wrote"),
    ("ps-*", "ps.copy.sending"),
    ("ps-*", "ps.copy.kept"),
    ("controller", "disk.sync"),
]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("seed", many(1))
def test_whichever_process_dies_between_the_copies_of_a_checkpoint_it_is_whole_or_not_there(
    seed: int, sync: bool
) -> None:
    """The controller and servers, at blocks that the seed draws; the next checkpoint is good, and so is training."""
    rng = np.random.default_rng(seed)
    drawn = [(str(AMID[i][0]), str(AMID[i][1]), int(rng.integers(5, 40))) for i in rng.permutation(len(AMID))[:2]]
    faults = [InjectedFault(*drawn[0]), InjectedFault(*drawn[1])]
    with Story(
        f"C4 killed amid a checkpoint, {'sync' if sync else 'async'}", faults=faults, save_every=4, sync=sync
    ) as story:
        for number in (0, 1):
            story.struck(number)
        story.happens("saved")
        story.stepped(2).finish()


FULL = """
import sys
from pathlib import Path
from tests.elastic.chaos.story import Story

folder = Path(sys.argv[1])
with Story("C1 full file system", folder=folder, save_every=4) as story:
    story.at(5)
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            print("full:", error.strerror)
    story.gone_on(12)  # events cannot be written either, or not all
    ballast.unlink()
    for _ in range(2):
        print(story.happens("unsaved")["why"])
    story.happens("saved")
    story.stepped(2).finish()
print("judged")
"""


def test_a_file_system_that_is_really_full_stops_no_process(tmp_path: Path) -> None:
    """A tmpfs of 3 MB, mounted where only this test sees it."""
    with tempfile.TemporaryDirectory(prefix="lkt") as folder:
        mount = f'mount -t tmpfs -o size=3m,mode=700 none {folder} && exec "$@"'
        mounted = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount",
             "sh", "-c", mount, "sh", sys.executable, "-c", FULL, folder],
            capture_output=True, text=True, timeout=HANG_S, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()},
        )  # fmt: skip
    if "unshare:" in mounted.stderr or "mount:" in mounted.stderr:
        pytest.skip(f"this machine lets no process mount in a name space of its own: {mounted.stderr.strip()[:200]}")
    assert mounted.returncode == 0, mounted.stderr[-4000:]
    assert mounted.stdout.startswith("full: No space left on device")
    assert "could not be written" in mounted.stdout
    assert mounted.stdout.endswith("judged\n")


def damage(path: Path, kind: str) -> None:
    """Damage a checkpoint in one of the ways of disks."""
    file = max(path.glob("*"), key=lambda p: p.stat().st_size)
    if kind == "flip":
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 16
        file.write_bytes(raw)
    elif kind == "truncate":
        os.truncate(file, file.stat().st_size // 2)
    else:
        file.unlink()


@pytest.mark.parametrize("seed", many(1))
def test_a_job_goes_back_past_a_damaged_checkpoint_and_names_it(seed: int) -> None:
    kind = ("flip", "truncate", "delete")[seed % 3]
    with Story(f"C2 damaged checkpoint, {kind}", save_every=5) as story:
        story.happens("saved")
        newest = story.happens("saved")["version"]
        damage(story.folder / "checkpoints" / f"step-{newest:06d}", kind)
        story.kill("ps-0")
        bad = story.happens("bad_checkpoint")
        assert f"step-{newest:06d}" in bad["why"]
        assert story.happens("began")["version"] < newest
        story.stepped().finish()


def test_a_job_without_a_good_checkpoint_ends_at_once_and_says_why() -> None:
    with Story("C2 all damaged", save_every=5) as story:
        story.happens("saved")
        with story.stopped(story.job.pid):  # so that it writes none meanwhile
            for path in (story.folder / "checkpoints").glob("step-*"):
                damage(path, "flip")
            story.kill("ps-0")
        story.happens("over")
        pids = list(story.pids.values())
        with pytest.raises(JobError, match=r"no checkpoint in .* is good: .*step-0000"):
            story.job.wait(timeout_s=HANG_S)
        assert not [pid for pid in pids if alive(pid)]
