"""A folder from a stranger runs nothing and writes nothing elsewhere, whatever command it is given to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.core import consent
from labkit.core.outside import _offered
from labkit.testbed.inventory import Inventory
from tests.fuzz.forked import complaint, ran, warm
from tests.gifts.folders import CANARY, GIFT, GIFTS, HOSTS, change, names

PROFILE = Path(__file__).parents[2] / "traces" / "testbed-profile.json"
MINE = """
import helper
from labkit.schedulers import make
class Mine:
    def __init__(self, k: int = 1): self.k = k
    def schedule(self, snapshot): return make("fifo").schedule(snapshot)
def forget(path):
    open(path, "w").close()
    return Mine()
"""
RUNS_CODE = {
    "attach": ["attach", GIFT],
    "fidelity": ["fidelity", GIFT, "--profile", str(PROFILE), "--out", "out/f.html"],
    "resume": ["deploy", "--resume", GIFT],
    "detached": ["deploy", "--resume", GIFT, "--detach"],
    "sweep": ["sweep", "--trace", "poisson(4, per_hour=60)", "--cluster", "demo", "--schedulers", "fifo", "--folder",
              GIFT, "--workers", "0", "--keep"],
}  # fmt: skip
"""Commands that run or write something in the folder that they are given."""
READS = {
    "watch": ["watch", GIFT, "--once"],
    "list": ["runs", "list"],
    "list within": ["runs", "list", "--runs", GIFT],
    "as a trace": ["simulate", f"{GIFT}/jobs.parquet", "--cluster", "demo", "--scheduler", "fifo", "--runs", "out"],
    "removed": ["runs", "remove", "gift", "--yes"],
}
DRAWS = {
    "report": ["report", GIFT, "--out", "out/r.html"],
    "compared": ["runs", "compare", "gift", "--no-open", "--out", "out/c.html"],
    "figure": ["figure", GIFT, "--out", "out/f.svg"],
    "against": ["fidelity", "runs/honest", "--against", GIFT, "--out", "out/a.html"],
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on machines that its user began, as it would be after it was stopped."""
    warm()
    work = tmp_path_factory.mktemp("gifts")
    for folder in ("runs", "elsewhere", "out", "home"):
        (work / folder).mkdir()
    (work / "victim").write_text("mine\n")
    (work / "mine.py").write_text(MINE)
    (work / "helper.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        at_work(patch, work)
        words = ["poisson(4, per_hour=60, models=('resnet50',))", "--cluster", "hosts.toml", "--runs", "runs"]
        (work / "hosts.toml").write_text(HOSTS.replace(""", proxy_command = "sh -c 'touch PWN; exit 1'" """, " "))
        code, said = ran(["compare", *words, "--schedulers", "mine.py:Mine(k=3)"], cwd=work)
        assert code == 0, said
        (run,) = (work / "runs").iterdir()
        run.rename(work / "runs/honest")
        Inventory.read("hosts.toml")
        consent.keep()
        consent._agreed.clear()  # commands are forks of this process: they are to find it on the disk
    info = json.loads((work / "runs/honest/run.json").read_text())
    asked = {**info["config"], "asked": info["scheduler"]}
    change(work / "runs/honest/run.json", run="honest", backend="testbed", state="stopped", config=asked)
    state = {"run": "honest-1", "inventory": str(work / "hosts.toml"), "began_at": 0.0, "training": {}, "ended": True}
    (work / "runs/honest/testbed.json").write_text(json.dumps(state))
    return work


def at_work(patch: pytest.MonkeyPatch, work: Path) -> None:
    patch.chdir(work)
    patch.setenv("HOME", str(work / "home"))
    patch.setenv("XDG_STATE_HOME", str(work / "state"))


@pytest.fixture
def work(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of that folder for one test, at the very same path: consent is to a file at its place."""
    kept = tmp_path / "kept"
    shutil.copytree(honest, kept)
    at_work(monkeypatch, honest)
    yield honest
    shutil.rmtree(honest)
    kept.rename(honest)


def rest_of(work: Path) -> str:
    """Return a digest of all that a command may not change: names, links and contents outside the gift and `out`."""
    whole = hashlib.sha256()
    left_out = (work / GIFT, work / "out", work / ".stderr", work / "elsewhere" / "gift")
    for root, folders, files in os.walk(work):
        folders[:] = sorted(name for name in folders if Path(root) / name not in left_out and name != "__pycache__")
        for path in (Path(root) / name for name in sorted([*folders, *files])):
            if path not in left_out and path.name != ".stderr":
                what = os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_bytes().hex()
                whole.update(f"{path}\0{what}\n".encode())
    return whole.hexdigest()


def refuse(work: Path, name: str, commands: dict[str, list[str]]) -> None:
    for called, words in commands.items():
        if os.path.lexists(work / GIFT):
            os.unlink(work / GIFT) if (work / GIFT).is_symlink() else shutil.rmtree(work / GIFT)
            shutil.rmtree(work / "elsewhere/gift", ignore_errors=True)
        shutil.copytree(work / "runs/honest", work / GIFT)
        change(work / GIFT / "run.json", run="gift")
        GIFTS[name](work / GIFT)
        before = rest_of(work)
        code, said = ran(words, cwd=work)
        assert not (work / CANARY).exists(), f"{called} ran what {name} holds:\n{said}"
        assert rest_of(work) == before, f"{called} wrote outside of the folder for {name}:\n{said}"
        if (called, code) != ("watch", 1):  # a run that was stopped
            assert not complaint(code, said), f"{called}, {name}: {complaint(code, said)}\n{said}"


def test_what_a_user_began_goes_on_without_a_question(work: Path) -> None:
    code, said = ran(["attach", "honest"], cwd=work)
    assert "cannot be used" in said, said  # its host does not answer: all else was let through
    assert code == 2
    code, said = ran(["fidelity", "honest", "--profile", str(PROFILE), "--out", "out/f.html"], cwd=work)
    assert "agreed" not in said, said


def test_what_changed_since_is_asked_for_again_and_trusted_by_a_word(work: Path) -> None:
    for file in ("helper.py", "mine.py", "hosts.toml"):
        before = (work / file).read_bytes()
        (work / file).write_bytes(before + b"\n# changed\n")
        code, said = ran(["attach", "honest"], cwd=work)
        assert (code, said.count("\n")) == (2, 1)
        assert str(work / ("hosts.toml" if file == "hosts.toml" else "mine.py")) in said
        assert "has changed since you agreed to it" in said
        assert "--trust" in said
        for words in (["attach", "honest", "--trust"], ["attach", "honest"]):
            assert "cannot be used" in ran(words, cwd=work)[1]
    assert (work / "state/labkit/trusted").stat().st_mode & 0o777 == 0o600


def test_an_entry_point_of_another_package_needs_consent_to_its_version(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = work / "packages"
    shutil.copytree(work / "runs/honest", work / GIFT)
    names(work / GIFT, "evil")
    for version in ("1.0", "1.1"):
        shutil.rmtree(code, ignore_errors=True)
        about = code / f"evilpkg-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: evilpkg\nVersion: {version}\n")
        (about / "entry_points.txt").write_text("[labkit.schedulers]\nevil = evilpkg:S\n")
        shutil.move(work / GIFT / "evil.py", code / "evilpkg.py")
        shutil.copy(code / "evilpkg.py", work / GIFT / "evil.py")
        monkeypatch.syspath_prepend(code)
        _offered.cache_clear()
        exit_code, said = ran(["attach", "gift"], cwd=work)
        assert (exit_code, (work / CANARY).exists()) == (2, False), said
        assert f"the scheduler evil in evilpkg {version} (SHA-256 " in said
        ran(["attach", "gift", "--trust"], cwd=work)
        assert (work / CANARY).exists(), "it runs once it is trusted"
        (work / CANARY).unlink()
    _offered.cache_clear()


@pytest.mark.parametrize("name", GIFTS)
def test_a_gift_is_refused_by_all_that_would_run_or_write_there(work: Path, name: str) -> None:
    refuse(work, name, RUNS_CODE)


@pytest.mark.slow
@pytest.mark.parametrize("name", GIFTS)
def test_a_gift_can_be_read(work: Path, name: str) -> None:
    refuse(work, name, READS)


@pytest.mark.slow
@pytest.mark.skipif("LABKIT_CHAOS" not in os.environ, reason="each draws for seconds: make chaos")
@pytest.mark.parametrize("name", GIFTS)
def test_a_gift_can_be_drawn(work: Path, name: str) -> None:
    refuse(work, name, DRAWS)
