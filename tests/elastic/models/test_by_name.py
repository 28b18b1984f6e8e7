"""A worker process is told names and numbers, as JSON; it makes the same model, samples and gradients of them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit.elastic import models
from labkit.elastic.data import dataset
from tests.hang import HANG_S

CHILD = """
import json, sys
import labkit.elastic.data, labkit.elastic.models
assert "torch" not in sys.modules, "importing the names must not load torch"
from tests.elastic.models.test_by_name import digests, peak_mb
import torch
torch.set_num_threads(1)
told = json.loads(sys.argv[1])
before = peak_mb()
for name in labkit.elastic.models.available():
    labkit.elastic.models.n_parameters(name)
grown = peak_mb() - before
print(json.dumps({"digests": [digests(**one) for one in reversed(told)][::-1], "grown_mb": grown}))
"""
TOLD = [
    {
        "model": {"name": name, "width": 0.1, "seed": 7},
        "data": {"name": "digits-like" if name == "digits" else name, "n": 500, "width": 0.1, "seed": 3},
    }
    for name in models.available()
]


def digests(model: dict, data: dict) -> list[str]:
    """Return digests of the first parameters, of a batch and of its gradient."""
    net, batch = models.build(**model), dataset(**data).fetch([499, 0, 17, 17])
    models.loss(model["name"])(net, batch).backward()
    parameters = list(net.parameters())
    return [digest(parameters), digest(batch), digest([p.grad for p in parameters])]


def digest(tensors) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def peak_mb() -> float:
    """Return the most memory that this process has had, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


@pytest.fixture(scope="module")
def child() -> dict:
    root = Path(__file__).parents[3]
    told = [sys.executable, "-W", "error", "-c", CHILD, json.dumps(TOLD)]
    done = subprocess.run(
        told, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", range(len(TOLD)), ids=[one["model"]["name"] for one in TOLD])
def test_another_process_has_the_same_parameters_samples_and_gradients(child, place):
    assert torch.get_num_threads() == 1
    assert child["digests"][place] == digests(**TOLD[place])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_counting_parameters_of_published_sizes_makes_no_room_for_them(child):
    assert child["grown_mb"] < 300 < 4 * models.n_parameters("vgg-16") / 1e6
