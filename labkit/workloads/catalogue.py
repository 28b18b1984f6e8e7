"""The catalogue of models: sizes, compute times, demands and profiles of ten training jobs, with sources.

Sources of the figures:

* DL2: the eight models of Table 1 of Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters"
  (TPDS 2021); compute time, size, epoch and speed at one PS and one worker as measured by its authors and published
  with its simulator. A size of 4 bytes per parameter gives the number of parameters.
* Cores used per worker and per PS: means over the same measurements, in containers of at most 2 cores.
* DLRover: Tables 1 and 2 of Wang et al., "DLRover: an elastic deep training extension with auto job resource
  computation" (2023): cores, throughput, tuned gangs, batch 512 on Criteo.
* Sizes of Wide&Deep and xDeepFM are estimates, not published with DLRover: 2.3 million Criteo features (Lian et al.,
  "xDeepFM", KDD 2018, Table 1) with embeddings of 10 and a linear weight each, two layers of 400, and three
  interaction layers of 200 for xDeepFM. Their batches touch 512 x 39 embeddings, hence the small PCIe figure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats


@dataclass(frozen=True, slots=True)
class Demand:
    """What one task takes."""

    gpus: float
    cpus: float
    memory_gb: float = 0.0

    def amounts(self) -> tuple[float, float, float]:
        """Return the amount of each resource, in the order of the axis R."""
        return self.gpus, self.cpus, self.memory_gb


@dataclass(frozen=True, slots=True)
class Model:
    """A model as a training job sees it.

    Attributes
    ----------
    name, domain, dataset : str
        What it is and what it learns from.
    n_parameters : int
        Parameters, of 4 bytes each.
    compute_s : float
        Seconds in which one worker computes the gradient of the global batch.
    batch : int
        Samples in the global batch.
    steps_per_epoch : int
        Steps in one (downscaled) epoch.
    samples_per_s : float
        Measured speed with one worker and one parameter server.
    worker_demand, ps_demand : Demand
        What one task asks for.
    worker_cores, ps_cores : float
        Cores that one task really uses (mean).
    pcie_gbps : float
        Load that one worker puts on its PCIe bus: parameters out and gradients in, once per local step.
    n_workers, n_ps : int
        A well-tuned gang.
    source : str
        Where the figures come from.
    """

    name: str
    domain: str
    dataset: str
    n_parameters: int
    compute_s: float
    batch: int
    steps_per_epoch: int
    samples_per_s: float
    worker_demand: Demand
    ps_demand: Demand
    worker_cores: float
    ps_cores: float
    pcie_gbps: float
    n_workers: int
    n_ps: int
    source: str

    @property
    def bytes(self) -> int:
        """Size of the parameters, and of a gradient."""
        return 4 * self.n_parameters

    @property
    def size_mb(self) -> float:
        """Size in megabytes (10^6 bytes)."""
        return self.bytes / 1e6


_GPU, _CPU, _PS = Demand(1, 2), Demand(0, 2), Demand(0, 2)
_DL2 = "DL2, Table 1 and its published simulator"
_DLROVER = "DLRover, Tables 1 and 2; size estimated from xDeepFM (KDD 2018), Table 1"

# name, domain, dataset, size MB, compute s, batch, epoch steps, samples/s at (1, 1), demand, cores of worker, of PS
_DL2_ROWS: Final = (
    ("resnet-50", "image classification", "ImageNet", 102.2, 0.449, 32, 115, 15.783, _GPU, 0.99, 1.60),
    ("vgg-16", "image classification", "ImageNet", 553.4, 0.535, 32, 115, 9.554, _GPU, 0.72, 1.12),
    ("resnext-110", "image classification", "CIFAR10", 6.92, 0.226, 128, 390, 382.822, _GPU, 1.44, 1.91),
    ("inception-bn", "image classification", "Caltech", 42.1, 0.815, 128, 120, 169.822, _GPU, 1.34, 1.82),
    ("seq2seq", "machine translation", "WMT17", 36.5, 0.075, 64, 780, 276.705, _GPU, 0.76, 0.44),
    ("cnn-text-classification", "sentence classification", "mr", 24.0, 0.585, 50, 193, 61.867, _CPU, 1.63, 0.30),
    ("dssm", "word representation", "text8", 6.0, 0.567, 256, 349, 462.228, _CPU, 1.98, 0.51),
    ("wlm", "language modeling", "PTB", 19.2, 0.154, 160, 165, 161.951, _GPU, 0.46, 1.66),
)


def _dl2_model(row: tuple[str, str, str, float, float, int, int, float, Demand, float, float]) -> Model:
    name, domain, dataset, size_mb, compute_s, batch, epoch, speed, worker, worker_cores, ps_cores = row
    pcie_gbps = round(2 * size_mb * 8e6 / compute_s / 1e9, 2)
    return Model(
        name, domain, dataset, round(size_mb * 1e6 / 4), compute_s, batch, epoch, speed, worker, _PS, worker_cores,
        ps_cores, pcie_gbps, n_workers=1, n_ps=1, source=_DL2,
    )  # fmt: skip


_CRITEO_STEPS = 80_577  # 45,840,617 samples, 90% of them for training, in batches of 512
_EMBEDDINGS = 2_300_000 * (10 + 1)
_DENSE = 390 * 400 + 400 * 400 + 400
_INTERACTIONS = 200 * 39 * 39 + 2 * 200 * 200 * 39

_WIDE_DEEP = Model(
    name="wide-deep",
    domain="click-through rate",
    dataset="Criteo",
    n_parameters=_EMBEDDINGS + _DENSE,
    compute_s=round(1 / 12, 4),
    batch=512,
    steps_per_epoch=_CRITEO_STEPS,
    samples_per_s=12 * 512,
    worker_demand=Demand(0, 3, 4),
    ps_demand=Demand(0, 16, 8),
    worker_cores=2.5,
    ps_cores=5.7,
    pcie_gbps=0.17,
    n_workers=24,
    n_ps=8,
    source=_DLROVER,
)
_XDEEPFM = replace(
    _WIDE_DEEP,
    name="xdeepfm",
    n_parameters=_EMBEDDINGS + _DENSE + _INTERACTIONS,
    compute_s=round(1 / 6.2, 4),
    samples_per_s=6.2 * 512,
    worker_demand=Demand(0, 20, 8),
    worker_cores=19.4,
    ps_cores=3.1,
    pcie_gbps=0.09,
    n_workers=8,
    n_ps=2,
)

_MODELS: Final[dict[str, Model]] = {m.name: m for m in (*map(_dl2_model, _DL2_ROWS), _WIDE_DEEP, _XDEEPFM)}
_ALIASES: Final = {
    "resnet50": "resnet-50",
    "vgg16": "vgg-16",
    "resnext": "resnext-110",
    "inception": "inception-bn",
    "ctc": "cnn-text-classification",
    "cnn-text": "cnn-text-classification",
    "wide&deep": "wide-deep",
    "w&d": "wide-deep",
    "xdfm": "xdeepfm",
}

DL2_MODELS: Final = tuple(row[0] for row in _DL2_ROWS)
"""The models of DL2's Table 1; their place + 1 is their type in DL2's simulator."""


def models() -> tuple[Model, ...]:
    """Return every model, DL2's eight first.

    >>> [m.name for m in models()][:3]
    ['resnet-50', 'vgg-16', 'resnext-110']
    """
    return tuple(_MODELS.values())


def model(name: str) -> Model:
    """Return the model of a name or an alias, in upper or lower case.

    Raises
    ------
    InputError
        If there is none; the message offers the nearest name.

    Examples
    --------
    >>> model("CTC").name
    'cnn-text-classification'
    >>> model("vgg-16").size_mb
    553.4
    """
    key = name.strip().lower()
    found = _MODELS.get(_ALIASES.get(key, key))
    if found is None:
        raise unknown("model", name, _MODELS.keys() | _ALIASES.keys())
    return found


def model_bytes(jobs: Jobs) -> Floats:
    """Return the bytes of each job's parameters, (N,); 0 where the catalogue does not know its model."""
    sizes = np.zeros(len(jobs.models))
    for k, name in enumerate(jobs.models):
        try:
            sizes[k] = model(name).bytes
        except InputError:
            continue
    return sizes[jobs.model]


def step_s(name: str, *, n_workers: int, n_ps: int, nic_gbps: float = 10.0) -> float:
    """Return a rough number of seconds per synchronous step, to declare durations with.

    The global batch is shared among the workers; then each PS sends the parameters of its shard to every worker and
    takes as many gradients back through a network card of `nic_gbps`. Speed models do this properly.

    >>> round(step_s("resnet-50", n_workers=2, n_ps=2), 3)
    0.388
    """
    m = model(name)
    transfer_s = 2 * m.bytes * 8e-9 / nic_gbps
    return m.compute_s / n_workers + transfer_s * max(1.0, n_workers / n_ps)
