"""Commands as people mistype them: a valid one, with values, files and letters replaced by odd ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from labkit.schedulers import available, open_options

NUMBERS = (
    "0", "-1", "1", "3", "2.5", "1e9", "1e-9", "1000000000", "1e308", "nan", "inf", "-inf", "abc", "", " ", "True",
    "None", "[1]", "(0,)", "()", "{}", "'x'", "1_000", "0x10", "9" * 500, "-" * 300 + "1", "(" * 300, "é", "\t", "1;2",
    "1j",
)  # fmt: skip
TRACES = (
    "trace.csv", "small.trace", "missing.csv", ".", "pipe", "/dev/zero", "/dev/null", "binary.csv", "empty.csv",
    "half.csv.gz", "odd.csv", "poisson(10, per_hour=60)", "poisson(N, per_hour=60)", "poisson(10, per_hour=N)",
    "poisson(10, per_hour=60, gangs=N)", "poisson(5, per_hour=60, jobs='philly', n_users=N)", "gavel_jobs(N)",
    "gavel_jobs(8, mean_gap_s=N)", "dl2_jobs('short_48n', jobs_per_slot=N)", "diurnal(8, per_hour=60, swing=N)",
    "google_like(8, per_hour=60, slot_s=N)", "poisson(10, per_hour=60, N=1)",
)  # fmt: skip
CLUSTERS = (
    "demo", "gavel-36x3", "no_network(N)", "fat_tree(N)", "single_switch(4, gbps=N)", "leaf_spine(2, N, 2)",
    "bcube(2, N)", "no_network(4, servers=[(N, 'dgx1')])", "hosts.toml", "odd.toml", "missing.toml", "pipe.toml",
    "deep.toml", "N",
)  # fmt: skip
INVENTORIES = ("hosts.toml", "odd.toml", "missing.toml", "pipe.toml", "deep.toml", "ranges.toml", "odd-ranges.toml")
OPTIONS = ("--slot", "--arrival-rate", "--first", "--start", "--restart", "--rescale", "--seed", "--speed", "--format")
SETTINGS = (
    "arrival_rate",
    "slot_s",
    "first",
    "mtbf_s",
    "speed_error",
    "placer",
    "epoch_error",
    "start_s",
    "quantum_s",
    "nope",
)
PATHS = ("out.html", "out.pdf", "taken/out.html", "/proc/out.html", "new/out.html", ".", "\0.html", "x" * 300 + ".html")
OWN = (
    "mine.py",
    "odd.py",
    "missing.py",
    "./mine.py",
    "taken/mine.py",
    "pipe.py",
    "binary.py",
    "trace.csv",
    "cnn",
    ".py",
)
TRAIN = (
    "--batch", "--shards", "--workers", "--servers", "--lr", "--clip-value", "--precision", "--validate-every",
    "--patience", "--gradient-limit", "--metric", "--best", "--csv", "--tensorboard", "--out", "--at", "--seed",
    "--optimizer",
)  # fmt: skip
MINE = """import torch

model = torch.nn.Linear(2, 1)
data = (torch.ones(64, 2), torch.ones(64, 1))
validation_data = data


def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean(), {"error": 0.5}
"""
COMPARE = ("compare", "trace.csv", "--cluster", "demo", "--schedulers")
HOSTS = '[[hosts]]\nname = "h0"\ngpus = 4\ncpus = 16\nmemory_gb = 64\nsockets = 2\n'
RANGES = HOSTS.replace("h0", "h[08-11]") + 'ssh = { address = "10.0.0.[8-11]" }\n[groups]\nall = "h[08-11]"\n'


def write_files(folder: Path, rng: np.random.Generator) -> None:
    """Write the files that commands name: valid ones, and ones with a few bytes changed."""
    import os

    from labkit.workloads.expressions import trace
    from labkit.workloads.readers import write

    write(trace("poisson(6, per_hour=60)"), folder / "trace.csv")
    text = (folder / "trace.csv").read_bytes()
    (folder / "odd.csv").write_bytes(changed(text, rng))
    (folder / "small.trace").write_bytes(changed(text.replace(b",", b"\t"), rng))
    (folder / "binary.csv").write_bytes(rng.bytes(200))
    (folder / "empty.csv").write_bytes(b"")
    (folder / "half.csv.gz").write_bytes(b"\x1f\x8b\x08" + rng.bytes(30))
    (folder / "hosts.toml").write_text(HOSTS)
    (folder / "odd.toml").write_bytes(changed(HOSTS.encode(), rng))
    (folder / "ranges.toml").write_text(RANGES)
    (folder / "odd-ranges.toml").write_bytes(changed(RANGES.encode(), rng))
    (folder / "deep.toml").write_text("x = " + "[" * 3000)
    (folder / "taken").write_text("a file where a folder is asked for")
    (folder / "mine.py").write_text(MINE)
    (folder / "odd.py").write_bytes(changed(MINE.encode(), rng))
    (folder / "binary.py").write_bytes(rng.bytes(200))
    for name in ("pipe", "pipe.toml", "pipe.py"):
        os.mkfifo(folder / name)


def changed(raw: bytes, rng: np.random.Generator) -> bytes:
    """Return some bytes with a few of them replaced, dropped or doubled."""
    data = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            break
        at = int(rng.integers(len(data)))
        data[at : at + 1] = [b"", bytes([int(rng.integers(256))]), data[at : at + 1] * 2, b"1e999"][
            int(rng.integers(4))
        ]
    return bytes(data)


def command(rng: np.random.Generator) -> list[str]:
    """Return the words of a command."""

    def one(of: tuple[str, ...]) -> str:
        return str(of[int(rng.integers(len(of)))])

    def filled(of: tuple[str, ...]) -> str:
        return one(of).replace("N", one(NUMBERS), 1)

    makers: list[Callable[[], list[str]]] = [
        lambda: ["compare", filled(TRACES), "--cluster", filled(CLUSTERS), "--schedulers", _scheduler(rng)],
        lambda: [*COMPARE, _scheduler(rng), one(OPTIONS), one(NUMBERS)],
        lambda: [*COMPARE, "fifo", "--report", one(PATHS)],
        lambda: [*COMPARE, "fifo", "--throughputs", filled(TRACES)],
        lambda: ["simulate", filled(TRACES), "--cluster", filled(CLUSTERS), "--scheduler", _scheduler(rng)],
        lambda: ["train", one(OWN), "--steps", "-1", one(TRAIN), one((*NUMBERS, *PATHS))],  # none of them starts
        lambda: ["traces", "info", one(TRACES[:11])],
        lambda: ["report", one(PATHS), "--out", one(PATHS)],
        lambda: [
            "sweep", "--trace", filled(TRACES), "--cluster", "demo", "--schedulers", _scheduler(rng), "--folder",
            one(PATHS), "--workers", "0", "--seeds", one((*NUMBERS, "1-2", "5-1", "1,1")),
            "--set", f"{one(SETTINGS)}={one(NUMBERS)}",
        ],
        lambda: [
            "sweep", "--trace", "poisson(4, per_hour=60)", "--cluster", filled(CLUSTERS), "--schedulers", "fifo,srtf",
            "--folder", "swept", "--workers", "0", "--metric", one(("mean_jct_s", "nope", "", "wall_s")),
            "--figure", one(("x.svg", "x.txt", "taken/x.svg", "x")),
        ],
        lambda: [
            "deploy", filled(TRACES), "--dry-run", "--inventory", one(INVENTORIES), "--schedulers",
            f"fifo,{_scheduler(rng)}", "--repeat", one(("1", "2", *NUMBERS)), "--name", one(("night", *PATHS)),
            "--time-limit", one(("1h", "2h30m", "1h30", *NUMBERS)),
        ],
        lambda: ["deploy", "--resume", one(("night", *PATHS)), "--runs", one(("runs", *PATHS))],
    ]  # fmt: skip
    words = makers[int(rng.integers(len(makers)))]()
    if rng.random() < 0.2:  # a slip of the finger
        at = int(rng.integers(len(words)))
        words[at] = changed(words[at].encode() or b"x", rng).decode("utf-8", "replace").replace("\0", "?")
    return [word.replace("\0", "?") for word in words]


def _scheduler(rng: np.random.Generator) -> str:
    """Return a scheduler, sometimes with an odd option."""
    name = str(rng.choice(available()))
    options = sorted(open_options(name))
    if rng.random() < 0.4 or not options:
        return name
    return f"{name}({rng.choice(options)}={NUMBERS[int(rng.integers(len(NUMBERS)))]})"
