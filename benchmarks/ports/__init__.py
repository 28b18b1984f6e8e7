"""Twenty training scripts in the manner of well-known ones: does each train as its author meant it?

The scripts are of ours, small, with samples made here. Each is trained by `labkit.elastic` and by a plain loop of torch
that knows no servers (`labkit.elastic.verification`), with the same samples. To add one, write a file in `scripts`, as
for `labkit train`.

python -m benchmarks.ports [NAME ...] [--steps 100] [--faults] [--json FILE]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ports.faults import Slow, disturbed
from labkit.core.errors import LabkitError
from labkit.elastic.loading import Loading
from labkit.elastic.own_training import arguments_of, read_training
from labkit.elastic.verification import VerifiedTraining, apart, plain

KILLS = 10
"""Kills of a job with faults."""
SCRIPTS = Path(__file__).parent / "scripts"
NAMES = (
    "mnist", "vae", "dcgan", "word_language_model", "nanogpt", "siamese", "super_resolution", "time_sequence",
    "regression", "gcn", "gin", "dlrm", "resnet18", "transfer", "simclr", "unet", "transformer", "distillation",
    "multitask", "rnn",
)  # fmt: skip


def read(name: str, *, shards: int | None = None) -> VerifiedTraining:
    """Read a script; `shards` instead of its own number."""
    if shards is not None:
        os.environ["SHARDS"] = str(shards)
    try:
        for known in [known for known in sys.modules if known.startswith("labkit_train_")]:
            del sys.modules[known]
        found = read_training(SCRIPTS / f"{name}.py", seed=0)
    finally:
        os.environ.pop("SHARDS", None)
    options = {"servers": 2, **arguments_of(found, {}, typed=())}
    return VerifiedTraining(
        found.model, found.data, found.loss, options if shards is None else {**options, "shards": shards}
    )


def disturbed_job(training: VerifiedTraining, steps: int) -> Any:
    """Return a job of three workers that is slow, so that it can be disturbed, and has checkpoints."""
    options = training.options
    loading = Loading.of(
        training.data, batch=options.get("batch"), shuffle=options.get("shuffle", True), loaders=0, default=64
    )
    slow = {**options, "batch": loading.batch, "shuffle": loading.shuffle, "save_every": 20, "restarts": 50}
    return VerifiedTraining(training.model, Slow(loading), training.loss, slow).job(steps, workers=3)


# --- the comparison


@dataclass
class Outcome:
    """What came of a script.

    Attributes
    ----------
    name : str
        Of the script.
    refused : str
        Why it cannot be trained; empty: it can.
    alone, sharded : float, optional
        Largest difference from the plain loop with one shard, and with several.
    shards : int
        How many.
    equal : bool or None
        Whether one worker and three have the same bits; None: not tried.
    faults : int
        Kills and scalings of the three.
    digest : str
        Of the job of one worker.
    """

    name: str
    refused: str = ""
    alone: float | None = None
    sharded: float | None = None
    shards: int = 1
    equal: bool | None = None
    faults: int = 0
    digest: str = ""

    @property
    def right(self) -> bool:
        """Whether it trains as meant: at most 1e-6 with one shard, 1e-5 with several, one worker as three."""
        small = [found <= most for found, most in ((self.alone, 1e-6), (self.sharded, 1e-5)) if found is not None]
        return not self.refused and all(small) and self.equal is not False

    def line(self) -> str:
        """Return its row of the table."""
        if self.refused:
            return f"| {self.name} | refused: {self.refused} | | |"
        alone = _words(self.alone)
        sharded = f"{_words(self.sharded)} ({self.shards} shards)" if self.shards > 1 else "one shard by its nature"
        equal = "-" if self.equal is None else "equal bits" if self.equal else "**differ**"
        equal += f", {self.faults} kills and scalings" if self.faults else ""
        return f"| {self.name} | {alone} | {sharded} | {equal} |"


def _words(found: float | None) -> str:
    return "-" if found is None else "equal bits" if not found else f"{found:.1e}"


HEAD = (
    "| script | one shard, from plain torch | several shards, from plain torch | one worker and three |\n"
    "|---|---|---|---|"
)


def compared(name: str, *, steps: int, faults: bool = False) -> Outcome:
    """Train a script with labkit and in a plain loop."""
    outcome = Outcome(name)
    try:
        outcome.shards = read(name).shards
        if outcome.shards > 1:
            outcome.alone = _difference(outcome, steps, 1)
        found = _difference(outcome, steps, outcome.shards)
        outcome.alone, outcome.sharded = (outcome.alone, found) if outcome.shards > 1 else (found, None)
        outcome.equal = _of_three(outcome, steps, faults=faults) == outcome.digest
    except LabkitError as error:
        outcome.refused = str(error).splitlines()[0]
    return outcome


def _difference(outcome: Outcome, steps: int, shards: int) -> float:
    """Return how a job of one worker differs from the plain loop; its digest is kept."""
    with read(outcome.name, shards=shards).job(steps, workers=1) as job:
        result = job.wait()
    outcome.digest = result.digest
    return apart(result, *plain(read(outcome.name, shards=shards), steps))


def _of_three(outcome: Outcome, steps: int, *, faults: bool) -> str:
    """Return the digest of a job of three workers, undisturbed or not."""
    training = read(outcome.name)
    if not faults:
        with training.job(steps, workers=3) as job:
            return str(job.wait().digest)
    with disturbed_job(training, steps) as job:
        done = disturbed(job, steps, kills=KILLS)
        outcome.faults = len(done)
        print(f"{outcome.name}: {', '.join(done)}", file=sys.stderr, flush=True)
        return str(job.wait().digest)


def outcomes(names: Sequence[str], *, steps: int, faults: bool = False) -> Iterator[Outcome]:
    """Yield what came of each script."""
    for name in names or NAMES:
        yield compared(name, steps=steps, faults=faults)
