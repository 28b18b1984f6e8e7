"""Training on real GPUs: the same bits, hot scaling, and a trace of two jobs; skipped where there is no GPU.

They passed on one H100; docs/testbed-gpus.md has what was measured there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from labkit.core.events import Kind
from labkit.elastic import Result, models, start
from labkit.elastic.data import dataset
from labkit.experiment import deploy
from labkit.results.record import RunState
from labkit.system.doctor import which
from labkit.testbed.laptop import Bed
from tests.elastic import slow_training
from tests.hang import HANG_S
from tests.testbed.test_backend import TINY, jobs_of

NAME, STEPS = "dssm", 60
MODELS = (
    NAME,
    "cnn-text-classification",
)  # products of matrices; convolutions, which cuDNN sums in any order unless asked


@pytest.fixture(scope="module", autouse=True)
def n_gpus() -> int:
    """Return how many GPUs PyTorch sees; skip where there is none."""
    if not Path("/proc/driver/nvidia/version").exists():
        pytest.skip("no NVIDIA driver here, so nothing runs on a GPU")
    torch = pytest.importorskip("torch", reason="no torch here")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no GPU here")
    return int(torch.cuda.device_count())


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Let processes get the slow dataset without the file that it is from."""
    cloudpickle.register_pickle_by_value(slow_training)
    yield
    cloudpickle.unregister_pickle_by_value(slow_training)


def trained(
    device: str = "cuda:0", *, name: str = NAME, workers: int = 1, slow: Path = slow_training.NOWHERE
) -> Result:  # fmt: skip
    """Train on a device; with a file to be slow by, a worker comes after ten steps."""
    data = slow_training.Slow(dataset(name, n=256, width=0.1), slow)
    more = slow.parent.exists()
    with start(
        models.build(name, width=0.1), data, models.loss(name), steps=STEPS, batch=32, workers=workers, servers=2,
        optimizer="momentum", lr=0.05, devices=[device],
    ) as job:  # fmt: skip
        for event in job.events():
            if more and event["event"] == "loss" and event["version"] >= 10:
                slow.touch()
                job.scale(workers=1)
                more = False
            if event["event"] in ("scaled", "dropped"):
                slow.unlink(missing_ok=True)
        return job.wait(timeout_s=HANG_S)


@pytest.mark.parametrize("name", MODELS)
def test_a_job_on_a_gpu_ends_with_the_same_bits_however_many_workers_it_has(name: str) -> None:
    alone = trained(name=name)
    assert {trained(name=name, workers=n).digest for n in (1, 2, 3)} == {alone.digest}


def test_a_job_on_a_gpu_ends_with_the_same_bits_when_it_is_rescaled(tmp_path: Path) -> None:
    rescaled = trained(slow=tmp_path / "slow")
    assert "scaled" in [event["event"] for event in rescaled.events]
    assert rescaled.digest == trained().digest


def test_a_job_on_a_gpu_loses_as_one_on_processors_does() -> None:
    assert trained().losses == pytest.approx(trained("cpu").losses, rel=1e-2)


@pytest.mark.skipif(not which("sshd"), reason="no sshd here")
def test_a_trace_of_two_jobs_runs_on_the_gpus_of_a_host(n_gpus: int, own_folder: Path, tmp_path: Path) -> None:
    """One after the other on a host with one GPU, beside each other with two."""
    with Bed.up(1, folder=own_folder, gpus=min(n_gpus, 2)) as up:
        (machine,) = up.inventory
        real = replace(machine, host=replace(machine.host, device_type="gpu"))
        record = deploy(
            jobs_of(2), inventory=replace(up.inventory, machines=(real,)), scheduler="fifo", training=TINY,
            runs=tmp_path / "runs",
        )  # fmt: skip
        assert record.info.state == RunState.DONE
        rows = record.events
        assert np.count_nonzero(rows["kind"] == Kind.COMPLETED) == 2
        assert not np.count_nonzero(rows["kind"] == Kind.FAILED)
