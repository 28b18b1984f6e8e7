"""The suite three times, each in another order with other seeds: `python -m tests.flaky` lists what failed.

Round 2 computes as on an older processor; round 3 has four busy processes beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.other_processor import VARIABLES

ROOT = Path(__file__).parents[1]
N_ROUNDS, N_BUSY = 3, 4
CRASHED = 1
"""Exit codes of pytest above this one mean that tests were not run, or not all of them."""


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Keep `n` processes busy beside the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def failed(words: list[str], *, seed: int, environment: dict[str, str]) -> list[str]:
    """Run the tests in the order of `seed`; return the names of those that failed, or of pytest's own fault."""
    with tempfile.TemporaryDirectory() as kept:
        command = [
            sys.executable, "-m", "pytest", "-p", "no:nbval", "--dist", "loadfile", "--no-loadscope-reorder",
            "-o", f"cache_dir={kept}", f"--shuffle={seed}", f"--hypothesis-seed={seed}", *words,
        ]  # fmt: skip
        environment = os.environ | {"PYTHONHASHSEED": str(seed)} | environment
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        file = Path(kept, "v", "cache", "lastfailed")
        names = list(json.loads(file.read_text())) if file.exists() else []
    return names if code <= CRASHED and bool(names) == bool(code) else [*names, f"pytest ended with code {code}"]


def main() -> int:
    """Run the rounds; return 1 if a test failed in any of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="2", help="processes that run tests")
    parser.add_argument("--seed", type=int, default=int(np.random.default_rng().integers(2**31)), help="of round 1")
    options, words = parser.parse_known_args()
    words = ["-n", options.workers, *(words or ["-m", "not slow"])]
    found: dict[str, list[str]] = {}
    for n in range(N_ROUNDS):
        seed = options.seed + n
        other, loaded = n == 1, n == N_ROUNDS - 1
        what = f"round {n + 1} (--seed {seed}{', older processor' * other}{', busy machine' * loaded})"
        print(what, flush=True)
        with busy(N_BUSY * loaded):
            for name in failed(words, seed=seed, environment=VARIABLES if other else {}):
                found.setdefault(name, []).append(what)
    for name, rounds in found.items():
        print(f"{name}: failed in {len(rounds)} of {N_ROUNDS}: {'; '.join(rounds)}")
    print(f"{len(found)} tests failed at least once in {N_ROUNDS} rounds")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
