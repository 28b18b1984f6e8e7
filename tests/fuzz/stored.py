"""Folders of runs, queues and sweeps as disks and strangers leave them: an honest one, with something damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from labkit.core.parquet import decode_frame, encode_frame
from tests.fuzz.commands import changed

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 40, 10**400, 1e308, float("nan"), float("inf"), "", "x", "a\x1b[2J\u202eb\n", "../../x",
    "evil.py:S", "/dev/zero", "pipe", "x" * 5000, [], {}, [[]], {"a": 1}, "\ud800",
)  # fmt: skip
COMMANDS = (
    ["attach", "it"], ["watch", "it", "--once"], ["report", "it", "--out", "out/r.html"], ["runs", "list"],
    ["runs", "list", "--runs", "runs/it"], ["figure", "it", "--out", "out/f.svg"], ["deploy", "--resume", "it"],
    ["fidelity", "it", "--profile", "profile.json", "--out", "out/f.html"], ["runs", "remove", "it", "--yes"],
    ["fidelity", "it", "--against", "honest", "--out", "out/f.html"], ["runs", "compare", "it", "--no-open", "--out",
     "out/c.html"],
    ["sweep", "--trace", "poisson(4, per_hour=60)", "--cluster", "demo", "--schedulers", "fifo", "--folder", "runs/it",
     "--workers", "0", "--keep"],
)  # fmt: skip
PROFILE = Path(__file__).parents[2] / "traces" / "testbed-profile.json"
HOSTS = '[[hosts]]\nname = "h0"\ngpus = 64\ncpus = 256\nmemory_gb = 1024\nssh = {address = "127.0.0.1", port = 1}\n'


@cache
def honest() -> Path:
    """Make a folder with a run, a queue and a sweep, once."""
    import tempfile

    from tests.fuzz.forked import ran

    work = Path(tempfile.mkdtemp(prefix="labkit-stored-"))
    (work / "hosts.toml").write_text(HOSTS)
    trace = "poisson(4, per_hour=60, models=('resnet50',))"
    compared = ["compare", trace, "--cluster", "hosts.toml", "--runs", "made", "--schedulers", "fifo"]
    for words in (compared, [*COMMANDS[-1][:-4], "swept", "--workers", "0"]):
        code, said = ran(words, cwd=work)
        assert code == 0, said
    (run,) = (work / "made").iterdir()
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "backend": "testbed", "state": "stopped"}))
    state = {"run": "it-1", "inventory": str(work / "hosts.toml"), "began_at": 0.0, "training": {}, "ended": True}
    (run / "testbed.json").write_text(json.dumps(state))
    (run / "notes.txt").write_text("1.0 s: a note\n")
    (run / "reasons.json").write_text('["because"]')
    queue = work / "queue"
    queue.mkdir()
    shutil.copytree(run, queue / "a-1")
    shutil.copy(run / "jobs.parquet", queue / "trace.parquet")
    runs = [{"run": f"a-{n}", "scheduler": "fifo", "repeat": n, "state": "planned"} for n in (1, 2)]
    told = {"version": 1, "trace": "small", "inventory": str(work / "hosts.toml"), "where": str(work), "runs": runs}
    (queue / "queue.json").write_text(json.dumps(told))
    return work


def damage(folder: Path, rng: np.random.Generator) -> str:
    """Damage a file of a folder; return how, for people."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    path = files[int(rng.integers(len(files)))]
    kinds: list[Callable[[Path, np.random.Generator], object]] = [_bytes, _bytes, _cut, _link, _pipe, _folder, _gone]
    kinds += {".json": [_value] * 12, ".parquet": [_cell] * 12}.get(path.suffix, [])
    kind = kinds[int(rng.integers(len(kinds)))]
    try:
        how = kind(path, rng)
    except (ValueError, OverflowError, UnicodeError):  # what cannot be written: nothing has changed
        how = "nothing"
    return f"{kind.__name__} {path.relative_to(folder)} {how!r:.80}"


def _bytes(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(changed(path.read_bytes(), rng))


def _cut(path: Path, rng: np.random.Generator) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: int(rng.integers(len(raw) + 1))])


def _link(path: Path, rng: np.random.Generator) -> None:
    path.unlink()
    path.symlink_to(str(rng.choice(["/dev/zero", "../../victim", path.name, "missing", "../../elsewhere"])))


def _pipe(path: Path, _: np.random.Generator) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, _: np.random.Generator) -> None:
    path.unlink()
    path.mkdir()


def _gone(path: Path, _: np.random.Generator) -> None:
    path.unlink()


def _value(path: Path, rng: np.random.Generator) -> tuple[Any, Any]:
    """Give an entry of a JSON file, at any depth, an odd value."""
    whole = at = json.loads(path.read_text())
    while True:
        if not isinstance(at, dict | list) or not at:
            raise ValueError
        keys: list[Any] = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.3:
            break
        at = at[key]
    at[key] = odd = ODD[int(rng.integers(len(ODD)))]
    path.write_text(json.dumps(whole, ensure_ascii=True))
    return key, odd


def _cell(path: Path, rng: np.random.Generator) -> tuple[str, Any]:
    """Give cells of a table odd values, or leave a column out."""
    frame, notes = decode_frame(path.read_bytes())
    name = str(frame.columns[int(rng.integers(len(frame.columns)))])
    row, odd = int(rng.integers(len(frame))), ODD[int(rng.integers(len(ODD)))]
    if rng.random() < 0.15:
        frame = frame.drop(columns=name)
    elif frame[name].dtype.kind in "fiub" and isinstance(odd, int | float):
        column = frame[name].to_numpy().copy()
        column[row] = odd
        frame[name] = column
    else:
        column = frame[name].astype(object).to_numpy()
        column[row] = str(odd)
        frame[name] = [str(value) for value in column]
    path.write_bytes(encode_frame(frame, notes=notes))
    return name, odd


def attempt(number: int) -> str:
    """Damage a folder, and run a command on it; return what is wrong with how it ended, "" if nothing is."""
    import shlex
    import tempfile

    from tests.fuzz.forked import complaint, ran

    rng = np.random.default_rng([11, number])
    source = honest()
    with tempfile.TemporaryDirectory(prefix="labkit-fuzz-") as name:
        cwd = Path(name)
        for folder in ("runs", "elsewhere", "out", "home"):
            (cwd / folder).mkdir()
        (cwd / "victim").write_text("mine\n")
        shutil.copy(PROFILE, cwd / "profile.json")
        run = next((source / "made").iterdir())
        shutil.copytree(run, cwd / "runs" / "honest")
        kind = [run, run, run, source / "queue", source / "swept"][int(rng.integers(5))]
        shutil.copytree(kind, cwd / "runs" / "it")
        how = [damage(cwd / "runs" / "it", rng) for _ in range(int(rng.integers(1, 3)))]
        words = list(COMMANDS[int(rng.integers(len(COMMANDS)))])
        before = _rest(cwd)
        os.environ |= {"HOME": str(cwd / "home"), "XDG_STATE_HOME": str(cwd / "home" / "state")}
        code, said = ran(words, cwd=cwd)
        wrong = "" if code == 1 and words[0] == "watch" else complaint(code, said)
        if not wrong and _rest(cwd) != before:
            wrong = "it wrote outside of the folder"
        raw = next((letter for letter in said if not letter.isprintable() and letter != "\n"), None)
        if not wrong and raw is not None:
            wrong = f"it wrote {raw!r} to the terminal"
    return wrong and f"folder {number}: {wrong}: {how}: labkit {shlex.join(words)}\n{said[-1500:]}"


def _rest(cwd: Path) -> dict[str, str]:
    """Return what no command may change: all but the damaged folder, and where reports go."""
    found = {}
    for path in sorted(cwd.rglob("*")):
        name = str(path.relative_to(cwd))
        if not name.startswith(("runs/it", "out", ".stderr")):
            found[name] = "" if path.is_dir() else path.read_bytes().hex()
    return found
