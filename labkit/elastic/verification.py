"""Verify a training before it is paid for: a few steps of a job, and the same in a plain loop of torch."""

from __future__ import annotations

import copy
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import LabkitError
from labkit.elastic.job_start import start
from labkit.elastic.own_training import read_training
from labkit.elastic.plain import plain_losses
from labkit.elastic.script import LoopLoss

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.elastic.job import Job
    from labkit.elastic.result import Result

CLOSE: Final = 1e-5
"""Largest difference from the plain loop that rounding may make of numbers around 1."""
WORKERS: Final = 3


@dataclass
class VerifiedTraining:
    """What is trained, and how."""

    model: Any
    data: Any
    loss: Any
    """`model`, `data` and `loss`: as those of `labkit.elastic.start`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Its other arguments."""

    @property
    def shards(self) -> int:
        """Logical shards of a batch."""
        return int(self.options.get("shards", 8))

    def copied(self, **options: Any) -> VerifiedTraining:
        """Return the same with other options, with a model and optimizers of its own."""
        if isinstance(self.loss, LoopLoss):
            again = self.loss.again()
            own = {name: value for name, value in again.training.items() if name in self.options}
            return VerifiedTraining(again.loop.model, again.loop.data, again, {**self.options, **own, **options})
        own = {name: self.options[name] for name in ("optimizer", "scheduler") if name in self.options}
        model, own = copy.deepcopy((self.model, own))
        return VerifiedTraining(model, self.data, self.loss, {**self.options, **own, **options})

    def job(self, steps: int, **options: Any) -> Any:
        """Return a job that trains it."""
        return start(self.model, self.data, self.loss, steps=steps, **{**self.options, **options})


def plain(training: VerifiedTraining, steps: int) -> tuple[dict[str, Tensor], list[float]]:
    """Train in a loop of torch; return the state_dict and the loss of each step."""
    losses = plain_losses(training.model, training.data, training.loss, training.options, steps)
    return {name: tensor.detach().clone() for name, tensor in training.model.state_dict().items()}, losses


# --- the comparison


def apart(result: Result, state: Mapping[str, Tensor], losses: Sequence[float]) -> float:
    """Return the largest difference of a loss, or a number of the state, from the plain loop's; relative if over 1."""
    mine = result.state_dict()
    rows = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(result.losses, losses, strict=True)]
    for name in state:
        a, b = mine[name].double(), state[name].double()
        rows.append(float(((a - b).abs() / b.abs().clamp(min=1.0)).max()) if b.numel() else 0.0)
    return max(rows)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a comparison has found: a line, and whether it is as it should be."""

    line: str
    right: bool


def verify(training: VerifiedTraining, *, steps: int) -> Iterator[Verified]:
    """Yield what is equal: job and plain loop with one shard, and with several; one worker and three, disturbed."""
    digests, sizes = [], [1, training.shards]
    if training.options.get("per_shard") and training.shards > 1:
        names = ", ".join(training.options["per_shard"])
        yield Verified(f"one shard: not compared: {names} has the size of one of {training.shards} shards", right=True)
        sizes = [training.shards]
    for n in dict.fromkeys(sizes):
        with training.copied(shards=n).job(steps, workers=1) as job:
            result = job.wait()
        digests.append(result.digest)
        difference = apart(result, *plain(training.copied(shards=n), steps))
        pieces = "one shard" if n == 1 else f"{n} shards, in micro-batches"
        size = "equal bits" if not difference else f"largest difference {difference:.1e}"
        yield Verified(f"{pieces}, {steps} steps of a plain loop of torch beside it: {size}", difference <= CLOSE)
    with training.copied().job(steps, workers=WORKERS) as job:
        done = disturb(job)
        equal = job.wait().digest == digests[-1]
    yield Verified(f"one worker and {WORKERS}, {done}: {'equal bits' if equal else 'other bits'}", equal)


def disturb(job: Job) -> str:
    """Kill a worker and add one while the first steps are made; return what was done.

    A server is stopped meanwhile, so that the job does not come to its end before.
    """
    for event in job.events():
        if event["event"] != "loss":
            continue
        members = {member.name: member.pid for member in job.status().members if member.pid}
        worker, server = (next((name for name in members if name.startswith(role)), "") for role in ("worker", "ps"))
        if not (worker and server):
            break
        with suppress(LabkitError, ProcessLookupError):  # the job may be at its end by now
            os.kill(members[server], signal.SIGSTOP)
            try:
                os.kill(members[worker], signal.SIGKILL)
                job.scale(workers=1)
            finally:
                os.kill(members[server], signal.SIGCONT)
            return "of which one was killed and one came"
        break
    return "which were done too soon to be disturbed"


# --- two hash seeds


def hash_seeds(path: Path, *, seed: int, args: Sequence[str] = ()) -> Verified:
    """Return whether a file trains the same whatever the hash seed of its process, on which the order of sets depends.

    Members of a job have one hash seed. The process that starts it has the user's.
    """
    told = [_in_a_process(path, seed, *args, hash_seed=number) for number in (1, 2)]
    if failed := next((words for words, code in told if code), ""):
        return Verified(f"two hash seeds: not compared: {failed}", right=True)
    equal = told[0] == told[1]
    cause = "" if equal else ": the order of a set decides, or hash(); take sorted(...), or set PYTHONHASHSEED=0"
    return Verified(f"two hash seeds, a step of a plain loop each: {'equal' if equal else 'other'} bits{cause}", equal)


def _in_a_process(path: Path, seed: int, *args: str, hash_seed: int) -> tuple[str, int]:
    """Return the last line of a process that trains a file for a step, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "labkit.elastic.verification", str(path), str(seed), *args],
        capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": str(hash_seed)}, check=False,
    )  # fmt: skip
    lines = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
    return lines[-1] if lines else "", done.returncode


def main(path: str, seed: str, *args: str) -> None:
    """Print the digest of a file's loss, and of its model after a step."""
    own = read_training(Path(path), seed=int(seed), args=args)
    state, losses = plain(VerifiedTraining(own.model, own.data, own.loss, {"optimizer": "adam", **own.arguments}), 1)
    digest = hashlib.sha256(repr(losses).encode())
    for part in state.values():
        digest.update(part.cpu().contiguous().numpy().tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
