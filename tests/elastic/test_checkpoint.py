"""Checkpoints: whole or not at all, verified, walked back; killed, cut off from power, full, flipped and of another."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.elastic.checkpoint.manifest import Disk
from labkit.elastic.checkpoint.store import (
    BadCheckpointError,
    CheckpointError,
    Checkpoints,
    NoCheckpointError,
    OtherModelError,
    SavedBlock,
    WriteError,
    digest_of,
)
from labkit.elastic.protocol.blocks import layout
from labkit.elastic.protocol.messages.codec import to_json
from labkit.elastic.server.optimizers import optimizer
from tests.elastic.saving import queue_at

sys.path.insert(0, str(Path(__file__).parent))
from saving import LAYOUT, OPTIMIZER, At, Counting, blocks_at, checkpoints, save  # beside this file

from tests.hang import HANG_S

sys.path.pop(0)


@pytest.fixture
def tmp_path(tmp_path_factory) -> Iterator[Path]:
    """In memory where there is a place for that: some thousand files are brought to the disk here."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("checkpoints")
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def digest_at(step: int) -> str:
    return digest_of(blocks_at(step))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def child(what: str, folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("saving.py")
    return subprocess.run(
        [*before, sys.executable, str(script), what, str(folder)],
        capture_output=True, text=True, timeout=HANG_S, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip


# --- what is saved is what is read


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("n_servers", [1, 2, 5])
def test_what_was_saved_is_read_bit_by_bit_whichever_server_owned_it(tmp_path, name, n_servers):
    chosen, rng = optimizer(name, lr=0.1), np.random.default_rng(0)
    blocks = [
        SavedBlock(b, 7, rng.standard_normal(n).astype(np.float32), chosen.init(n), {2: 9, 0: 4})
        for b, n in enumerate(LAYOUT.sizes)
    ]
    home = Checkpoints(tmp_path, layout=LAYOUT, optimizer=chosen)
    home.save(7, {f"ps-{s}": blocks[s::n_servers] for s in range(n_servers)}, queue=queue_at(7))
    found = home.newest()
    assert (found.step, found.queue, found.passed_over) == (7, queue_at(7), ())
    assert optimizer(name, **found.options) == chosen
    assert found.digest == digest_of(blocks)
    assert found.blocks[3].seen == {0: 4, 2: 9}
    grad = np.ones(LAYOUT.sizes[0], np.float32)  # it can continue from there
    chosen.apply(found.blocks[0].params, grad, found.blocks[0].state, step=8)


def test_a_checkpoint_is_a_folder_of_raw_blocks_a_queue_and_a_manifest(tmp_path):
    folder = save(tmp_path, 120)
    assert folder.name == "step-000120"
    assert names(folder) == ["manifest.json", "ps-0.blocks", "ps-1.blocks", "queue.json"]
    manifest = json.loads((folder / "manifest.json").read_text())["manifest"]
    assert (manifest["step"], manifest["layout"], manifest["optimizer"]) == (120, LAYOUT.digest, "adam")
    assert manifest["options"] == OPTIMIZER.options
    entry = next(e for e in manifest["blocks"] if e["number"] == 3)
    raw = (folder / f"{entry['server']}.blocks").read_bytes()[entry["offset"] :][: 12 * entry["n"]]
    block = blocks_at(120)[3]
    assert raw == block.params.tobytes() + block.state["mean"].tobytes() + block.state["square"].tobytes()
    assert entry["blake2b"] == hashlib.blake2b(raw, digest_size=20).hexdigest()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_two_newest_stay_and_nothing_else(tmp_path):
    for step in (0, 5, 1_000_000, 1_000_001):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-1000000", "step-1000001"]
    assert checkpoints(tmp_path).newest().step == 1_000_001


@pytest.mark.parametrize("file", ["manifest.json", "queue.json", "ps-0.blocks"])
def test_bad_checkpoints_do_not_count_among_those_that_stay(tmp_path, file):
    save(tmp_path, 1)
    save(tmp_path, 2)
    flipped(tmp_path / "step-000002" / file)
    save(tmp_path, 3)
    assert checkpoints(tmp_path).steps() == [1, 2, 3]
    save(tmp_path, 4)
    assert checkpoints(tmp_path).steps() == [3, 4]


def test_what_a_process_has_written_itself_is_not_read_again_to_be_kept(tmp_path, monkeypatch):
    home = checkpoints(tmp_path)
    for step in (1, 2, 3):
        home.save(step, {"ps-0": blocks_at(step)})
        monkeypatch.setattr(home, "load", None)
    assert home.steps() == [2, 3]
    (tmp_path / "step-000003" / "ps-0.blocks").unlink()  # it looks whether everything is there, though
    home.save(4, {"ps-0": blocks_at(4)})
    assert home.steps() == [2, 3, 4]


def test_blocks_of_different_versions_are_one_checkpoint_only_in_asynchronous_training(tmp_path):
    blocks = blocks_at(4)
    blocks[2] = replace(blocks[2], version=3)
    home = checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="block 2 is at version 3; expected 4, as all of them"):
        home.save(4, {"ps-0": blocks})
    home.save(4, {"ps-0": blocks}, mixed=True)
    assert home.newest().blocks[2].version == 3


def test_servers_are_added_one_by_one_and_no_reader_sees_it_before_the_commit(tmp_path):
    blocks, home = blocks_at(1), checkpoints(tmp_path)
    with home.begin(1) as draft:
        draft.add("ps-0", blocks[:4])
        draft.add("ps-1", iter(blocks[4:]))
        assert checkpoints(tmp_path).steps() == []
        draft.commit()
    assert home.newest().digest == digest_at(1)


def test_a_draft_that_is_not_committed_leaves_nothing(tmp_path):
    with checkpoints(tmp_path).begin(1) as draft:
        draft.add("ps-0", blocks_at(1))
    assert names(tmp_path) == []


# --- the digest


def test_the_digest_is_sha256_over_versions_parameters_and_state():
    n = sum(len(block.params) for block in blocks_at(5))
    told = hashlib.sha256(json.dumps([[[5, n]], ["mean", "square"]]).encode())
    for each in (lambda b: b.params, lambda b: b.state["mean"], lambda b: b.state["square"]):
        for vector in map(each, blocks_at(5)):
            told.update(struct.pack(f"<{len(vector)}f", *vector.tolist()))
    assert digest_at(5) == told.hexdigest()
    assert digest_of(reversed(blocks_at(5))) == digest_at(5)


def test_the_digest_does_not_depend_on_the_cut_into_blocks():
    def halves(block, number):
        middle = len(block.params) // 2
        for part, at in enumerate((slice(middle), slice(middle, None))):
            state = {name: vector[at] for name, vector in block.state.items()}
            yield replace(block, number=number + part, params=block.params[at], state=state)

    finer = [half for i, block in enumerate(blocks_at(5)) for half in halves(block, 2 * i)]
    assert len(finer) == 2 * len(blocks_at(5))
    assert digest_of(finer) == digest_at(5)


def test_the_digest_tells_any_bit_of_anything():
    def flipped(vector):
        raw = vector.copy()
        raw.view(np.uint32)[3] ^= 1
        return raw

    block, *rest = blocks_at(5)
    variants = [
        block,
        replace(block, version=6),
        replace(block, number=99),
        replace(block, params=flipped(block.params)),
        replace(block, state={**block.state, "square": flipped(block.state["square"])}),
        replace(block, state={"mean": block.state["square"], "square": block.state["mean"]}),
    ]
    assert len({digest_of([variant, *rest]) for variant in variants}) == len(variants)


def test_a_block_with_two_owners_has_no_digest():
    with pytest.raises(CheckpointError, match="block 0 comes twice; expected one owner of each"):
        digest_of([*blocks_at(1), blocks_at(1)[0]])


# --- damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


def deleted(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = {
    ("ps-1.blocks", cut): "ps-1.blocks has 3067 bytes; expected 3072",
    ("ps-1.blocks", lengthened): "ps-1.blocks has 3073 bytes; expected 3072",
    ("ps-1.blocks", emptied): "ps-1.blocks has 0 bytes; expected",
    ("ps-1.blocks", zeroed): "block 1 in ps-1.blocks is damaged: its digest does not match",
    ("ps-0.blocks", flipped): "in ps-0.blocks is damaged: its digest does not match",
    ("ps-0.blocks", deleted): "ps-0.blocks cannot be read: No such file",
    ("ps-0.blocks", a_folder): "ps-0.blocks cannot be read: Is a directory",
    ("manifest.json", cut): "manifest.json is damaged: it is no manifest, or cut short",
    ("manifest.json", emptied): "manifest.json is damaged: it is empty",
    ("manifest.json", zeroed): "bytes, all of them 0",
    ("manifest.json", flipped): "manifest.json is damaged",
    ("manifest.json", deleted): "manifest.json cannot be read: No such file",
    ("queue.json", flipped): "queue.json is damaged: its digest does not match",
    ("queue.json", deleted): "queue.json cannot be read",
}


@pytest.mark.parametrize(("file", "damage"), list(DAMAGE))
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_read(tmp_path, file, damage):
    save(tmp_path, 1)
    save(tmp_path, 2)
    damage(tmp_path / "step-000002" / file)
    told: list[BadCheckpointError] = []
    found = checkpoints(tmp_path).newest(on_bad=told.append)
    assert (found.step, found.digest) == (1, digest_at(1))
    assert list(found.passed_over) == told
    [bad] = told
    assert bad.name == "step-000002"
    assert DAMAGE[file, damage] in str(bad)
    assert file in str(bad)
    assert "\n" not in str(bad)


def test_with_nothing_good_left_every_bad_one_is_named(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    emptied(tmp_path / "step-000001" / "ps-0.blocks")
    deleted(tmp_path / "step-000002" / "manifest.json")
    with pytest.raises(NoCheckpointError) as caught:
        checkpoints(tmp_path).newest()
    assert [bad.name for bad in caught.value.bad] == ["step-000002", "step-000001"]
    assert "step-000002: manifest.json cannot be read" in str(caught.value)
    assert "step-000001: ps-0.blocks has 0 bytes" in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_found_or_harmless(tmp_path, data):
    home = tmp_path
    shutil.rmtree(home / "step-000001", ignore_errors=True)
    folder = save(home, 1)
    path = folder / data.draw(st.sampled_from(names(folder)))
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    try:
        found = checkpoints(home).newest()
    except NoCheckpointError:
        return
    assert path.name == "manifest.json"  # white space between what it says
    assert (found.step, found.digest, found.queue) == (1, digest_at(1), queue_at(1))


def test_blocks_of_another_step_are_never_mixed_in(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    shutil.copy(tmp_path / "step-000001" / "ps-0.blocks", tmp_path / "step-000002" / "ps-0.blocks")
    found = checkpoints(tmp_path).newest()
    assert (found.step, found.digest) == (1, digest_at(1))
    assert "block 0 in ps-0.blocks is damaged" in str(found.passed_over[0])


def test_a_stale_manifest_is_named(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    shutil.copy(tmp_path / "step-000001" / "manifest.json", tmp_path / "step-000002" / "manifest.json")
    found = checkpoints(tmp_path).newest()
    assert (found.step, found.digest) == (1, digest_at(1))
    assert str(found.passed_over[0]) == "step-000002: manifest.json is stale: it is that of step-000001."


def test_a_queue_of_another_version_of_labkit_is_told_by_field_and_value_and_the_one_before_is_read(tmp_path):
    """As that version writes it: whole, with its digest in the manifest."""
    save(tmp_path, 1)
    raw = to_json(queue_at(2)).replace(b"labkit shards 1", b"labkit shards 2")
    with mock.patch("labkit.elastic.checkpoint.files.to_json", return_value=raw):
        save(tmp_path, 2)
    found = checkpoints(tmp_path).newest()
    assert (found.step, found.queue) == (1, queue_at(1))
    assert str(found.passed_over[0]) == (
        "step-000002: queue.json is not a saved shard queue: SavedShards.format is 'labkit shards 2': Input should be "
        "'labkit shards 1'; it was cut or changed, or is of another version of labkit."
    )


def test_a_stale_queue_is_found(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    shutil.copy(tmp_path / "step-000001" / "queue.json", tmp_path / "step-000002" / "queue.json")
    assert checkpoints(tmp_path).newest().queue == queue_at(1)


def test_a_format_of_the_future_is_passed_over_by_name(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr("labkit.elastic.checkpoint.manifest.FORMAT", 2)
    save(tmp_path, 2)
    monkeypatch.undo()
    found = checkpoints(tmp_path).newest()
    assert "manifest.json is of format 2; this version of labkit reads 1" in str(found.passed_over[0])


def test_training_that_went_back_past_a_bad_checkpoint_saves_that_step_again(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    flipped(tmp_path / "step-000002" / "ps-0.blocks")
    assert checkpoints(tmp_path).newest().step == 1
    save(tmp_path, 2)
    assert checkpoints(tmp_path).newest().digest == digest_at(2)
    assert names(tmp_path) == ["step-000001", "step-000002"]


def test_saving_the_same_again_changes_nothing_and_something_else_is_refused(tmp_path):
    folder = save(tmp_path, 1)
    written = (folder / "manifest.json").stat()
    save(tmp_path, 1)
    assert (folder / "manifest.json").stat() == written
    blocks = blocks_at(1)
    blocks[0] = replace(blocks[0], params=blocks[0].params + 1)
    with pytest.raises(CheckpointError, match=r"there is a good step-000001 in .* that says something else"):
        checkpoints(tmp_path).save(1, {"ps-0": blocks})
    assert checkpoints(tmp_path).newest().digest == digest_at(1)
    assert names(tmp_path) == ["step-000001"]


def test_a_training_that_begins_afresh_in_the_folder_of_another_is_told_at_once(tmp_path):
    save(tmp_path, 5)
    with pytest.raises(CheckpointError, match=r"a good step-000005 in .*, later than step-000001: continue from there"):
        save(tmp_path, 1)
    assert names(tmp_path) == ["step-000005"]
    flipped(tmp_path / "step-000005" / "ps-0.blocks")
    save(tmp_path, 1)
    assert checkpoints(tmp_path).newest().step == 1


# --- of another training


def other_layout():
    return layout([("weight", (20, 30)), ("bias", 20)], block_bytes=512)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"layout": other_layout(), "optimizer": OPTIMIZER}, "is of another model: its layout is"),
        ({"layout": LAYOUT, "optimizer": optimizer("sgd", lr=1)}, "is of the optimizer adam; expected sgd"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_and_stays(tmp_path, other, message):
    save(tmp_path, 1)
    home = Checkpoints(tmp_path, **other)
    for use in (home.newest, lambda: home.load(1), lambda: home.begin(2)):
        with pytest.raises(OtherModelError) as caught:
            use()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    assert checkpoints(tmp_path).newest().digest == digest_at(1)


def test_another_learning_rate_is_no_other_optimizer(tmp_path):
    save(tmp_path, 1)
    found = Checkpoints(tmp_path, layout=LAYOUT, optimizer=optimizer("adam", lr=0.5)).newest()
    assert found.options["lr"] == 1e-3


# --- a disk that is full or broken

MOMENTS = 24  # of saving a third checkpoint, counted below


def moments(tmp_path: Path) -> list[str]:
    """What is done to save a third checkpoint, in order."""
    seen: list[str] = []
    disk = Counting()
    disk.now = seen.append  # type: ignore[method-assign]
    for step in (1, 2):
        save(tmp_path, step)
    save(tmp_path, 3, disk)
    return seen


def test_everything_is_synced_before_it_is_renamed_and_the_name_after(tmp_path):
    seen = moments(tmp_path)
    one_file = ["create", "write", "half written", "sync"]
    assert seen[:19] == ["make_folder", *4 * one_file, "sync_folder", "rename"]
    assert seen[19] == "sync_folder"
    assert seen[20:22] == ["rename", "remove"]  # of the oldest, afterwards
    assert len(seen) >= MOMENTS


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("n", range(19))
def test_a_disk_that_fails_at_any_moment_leaves_the_last_good_one_and_says_so(tmp_path, n, number):
    def fail(what: str) -> None:
        raise OSError(number, errno.errorcode[number])

    save(tmp_path, 1)
    save(tmp_path, 2)
    with pytest.raises(WriteError) as caught:
        save(tmp_path, 3, At(n, fail))
    message = str(caught.value)
    assert caught.value.errno == number
    assert "step-000003 could not be written to" in message
    assert "the last good one is step-000002. Free space" in message
    assert names(tmp_path) == ["step-000001", "step-000002"]
    assert checkpoints(tmp_path).newest().digest == digest_at(2)
    save(tmp_path, 3)
    assert checkpoints(tmp_path).newest().digest == digest_at(3)


def test_a_name_that_may_not_last_is_an_error_and_saving_again_makes_it_last(tmp_path):
    def fail(what: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    save(tmp_path, 1)
    disk = At(19, fail)
    with pytest.raises(WriteError, match="the last good one is step-000001"):
        save(tmp_path, 3, disk)
    assert disk.where == "sync_folder"
    seen: list[str] = []
    again = Counting()
    again.now = seen.append  # type: ignore[method-assign]
    save(tmp_path, 3, again)
    assert seen[17:20] == ["sync_folder", "sync_folder", "remove"]  # of the draft and of the name; it is there already
    assert checkpoints(tmp_path).newest().digest == digest_at(3)


def test_an_old_checkpoint_that_cannot_be_removed_is_no_failure(tmp_path):
    def fail(what: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    save(tmp_path, 1)
    save(tmp_path, 2)
    save(tmp_path, 3, At(20, fail))
    assert checkpoints(tmp_path).steps() == [1, 2, 3]


def test_the_first_checkpoint_that_fails_says_that_there_is_no_other(tmp_path):
    def fail(what: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(WriteError, match=r"No space left on device; there is no other one\."):
        save(tmp_path / "new", 1, At(5, fail))


def test_a_folder_that_is_a_file_is_a_named_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="could not be written"):
        save(tmp_path / "file" / "checkpoints", 1)
    with pytest.raises(WriteError, match="could not be written"):
        save(tmp_path / "file", 1)


def test_a_file_that_may_not_grow_is_a_named_error(tmp_path):
    done = child("limited", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "step-000002 could not be written" in done.stdout
    assert "File too large; the last good one is step-000001" in done.stdout
    assert names(tmp_path) == ["step-000001"]
    assert checkpoints(tmp_path).newest().digest == digest_at(1)


def test_a_real_disk_that_is_full_leaves_the_last_good_one(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    done = child("full", tmp_path, "unshare", "--mount")
    if "mounted" not in done.stdout:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip().splitlines()[-1:]}")
    assert done.returncode == 0, done.stderr
    _, message, left, before, after = done.stdout.splitlines()
    assert "No space left on device; the last good one is step-000001" in message
    assert (left, before, after) == ("step-000001", "1", "2")


# --- killed, or without power


@pytest.mark.parametrize(("how", "counts_from"), [("killed", 19), ("killed over a bad one", 20)])
def test_killed_at_any_moment_either_the_old_or_the_new_one_is_found_whole(tmp_path, how, counts_from):
    done = child(how, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    where, signals = lines[::2], set(lines[1::2])
    assert signals == {"killed 9"}
    assert len(where) >= MOMENTS
    for n, what in enumerate(where):
        home = checkpoints(tmp_path / str(n))
        found = home.newest()
        assert found.step == (3 if n >= counts_from else 2), what  # the rename is the moment from which it counts
        assert found.digest == digest_at(found.step)
        save(tmp_path / str(n), 4)
        there = {found.step, 4} | ({3} if "bad" in how and n != counts_from - 1 else set())  # or just set aside
        stays = [f"step-{step:06d}" for step in sorted(there)]
        assert names(tmp_path / str(n)) == stays, what  # nothing half done, and nothing older than the two good ones


class PowerCut(BaseException):
    """Nothing is done any more."""


class Volatile(Counting):
    """A disk that keeps what was synced and loses the rest, in the way it chooses, when the power goes."""

    def __init__(self, n: int, *, sync: bool = True) -> None:
        self.left, self.off, self.obeys = n, False, sync
        self.unsynced: set[str] = set()
        self.renamed: list[tuple[Path, Path]] = []

    def now(self, what: str) -> None:
        self.off = self.off or self.left == 0
        if self.off:
            raise PowerCut
        self.left -= 1

    def create(self, path):
        file = super().create(path)
        self.unsynced.add(path.name)
        return file

    def sync(self, file):
        super().sync(file)
        if self.obeys:
            self.unsynced.discard(Path(file.name).name)

    def rename(self, path, to):
        super().rename(path, to)
        self.renamed.append((path, to))

    def sync_folder(self, path):
        super().sync_folder(path)
        self.renamed = [(a, b) for a, b in self.renamed if b.parent != path]

    def lose(self, folder: Path, *, names_too: bool) -> None:
        """What was not synced is there with its length, and empty of contents; a name may be the old one."""
        for path in [p for p in folder.rglob("*") if p.name in self.unsynced and "000003" in p.parent.name]:
            path.write_bytes(bytes(path.stat().st_size))
        for before, after in reversed(self.renamed if names_too else []):
            if after.exists():
                after.rename(before)


def newest_after_a_cut(folder: Path, n: int, *, sync: bool, names_too: bool):
    save(folder, 1)
    save(folder, 2)
    disk = Volatile(n, sync=sync)
    with pytest.raises(PowerCut):
        save(folder, 3, disk)
    disk.lose(folder, names_too=names_too)
    return checkpoints(folder).newest()


@pytest.mark.parametrize("names_too", [True, False])
@pytest.mark.parametrize("n", range(MOMENTS))
def test_without_power_at_any_moment_what_counts_is_on_the_disk(tmp_path, n, names_too):
    found = newest_after_a_cut(tmp_path, n, sync=True, names_too=names_too)
    assert found.step == 3 if n > 19 else found.step in (2, 3)
    assert found.digest == digest_at(found.step)
    assert found.passed_over == ()


def test_a_disk_that_only_says_that_it_has_synced_is_found_out(tmp_path):
    found = newest_after_a_cut(tmp_path, 20, sync=False, names_too=False)
    assert (found.step, found.digest) == (2, digest_at(2))
    assert "step-000003" in str(found.passed_over[0])


# --- wrong input


def saved(tmp_path, blocks, *, server="ps-0", queue=None, step=1):
    checkpoints(tmp_path).save(step, {server: blocks}, queue=queue)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda p: saved(p, blocks_at(1)[1:]), CheckpointError, "step-000001 lacks block 0; expected each of 5 blocks"),
        (lambda p: saved(p, [*blocks_at(1), blocks_at(1)[2]]), CheckpointError, "step-000001 has block 2 twice"),
        (
            lambda p: saved(p, [replace(blocks_at(1)[0], number=77)]),
            CheckpointError,
            "step-000001: block 77 is not one of 5",
        ),
        (
            lambda p: saved(p, [replace(blocks_at(1)[0], state={})]),
            CheckpointError,
            "step-000001: block 0 has parameters (128,) and state {}; expected (128,) each, and ['mean', 'square']",
        ),
        (
            lambda p: saved(p, [replace(blocks_at(1)[0], params=np.zeros(3, np.float32))]),
            CheckpointError,
            "block 0 has parameters (3,)",
        ),
        (lambda p: saved(p, blocks_at(1), step=2), CheckpointError, "block 0 is at version 1; expected 2"),
        (lambda p: saved(p, blocks_at(1), step=-1), InputError, "a checkpoint of step -1; expected 0 or more"),
        (lambda p: saved(p, blocks_at(1), server="../x"), InputError, "server '../x' cannot name a file"),
        (lambda p: Checkpoints(p, layout=LAYOUT, optimizer=OPTIMIZER, keep=1), InputError, "keep is 1; expected 2"),
        (lambda p: checkpoints(p / "nowhere").newest(), NoCheckpointError, "there is no checkpoint in"),
        (lambda p: checkpoints(p).load(5), BadCheckpointError, "step-000005: manifest.json cannot be read: No such"),
    ],
)
def test_wrong_input_is_named_in_one_line_and_leaves_nothing(tmp_path, wrong, error, message):
    with pytest.raises(error) as caught:
        wrong(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_real_disk_writes_all_of_what_it_is_given_in_short_pieces(tmp_path):
    class Short:
        """A file that takes at most seven bytes at a time."""

        def __init__(self):
            self.got = b""

        def write(self, data):
            self.got += bytes(data[:7])
            return min(7, len(data))

    file = Short()
    Disk().write(file, [b"", b"0123456789", np.arange(5, dtype=np.float32).data])
    assert file.got == b"0123456789" + np.arange(5, dtype=np.float32).tobytes()
