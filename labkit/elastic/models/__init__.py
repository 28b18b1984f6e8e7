"""Models to train: DL2's eight, Wide&Deep, xDeepFM and a small classifier of digits.

Each is an `nn.Module` with a `width`: 1 is the published size, and `SMALL` trains a step in milliseconds.
`labkit.elastic.data.dataset` returns matching samples by the same name, `loss` the matching loss:

>>> from labkit.elastic import models
>>> from labkit.elastic.data import dataset
>>> model = models.build("wlm", width=0.1)
>>> batch = dataset("wlm", n=100, width=0.1).fetch([0, 1, 2])
>>> bool(models.loss("wlm")(model, batch) > 0)
True

No model has dropout or batch statistics, so that the gradient of a batch is the mean over its shards. To add one,
write a class of `Size` in `networks`, and name it in `_CLASSES` and in `sizes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from labkit.core.errors import InputError
from labkit.elastic.models.sizes import CLICKS, NAMES, SMALL, Size, canonical, size_of, whole

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["SMALL", "Size", "available", "build", "learning_rate", "loss", "n_parameters", "size_of"]

_CLASSES: Final = {
    "resnet-50": "ResNet",
    "vgg-16": "VGG",
    "resnext-110": "ResNeXt",
    "inception-bn": "Inception",
    "seq2seq": "ConvSeq2Seq",
    "cnn-text-classification": "TextCNN",
    "dssm": "DSSM",
    "wlm": "WordLSTM",
    "wide-deep": "WideDeep",
    "xdeepfm": "XDeepFM",
    "digits": "Digits",
}
"""Class of each model, in `networks`."""

_LEARNING_RATES: Final = {"vgg-16": 0.001, "inception-bn": 0.001, "resnet-50": 0.003, "wlm": 0.03}


def available() -> list[str]:
    """Return the names of all models.

    >>> available()[:3]
    ['cnn-text-classification', 'digits', 'dssm']
    """
    return sorted(NAMES)


def build(name: str, *, width: float = 1.0, seed: int = 0, growing: bool = False) -> nn.Module:
    """Return a model with initial parameters.

    Parameters
    ----------
    name : str
        One of `available()`, or an alias of the catalogue.
    width : float
        Scale of its layers; 1 is the published size, `SMALL` trains a step in milliseconds on one core.
    seed : int
        Of the initial parameters; the global random generators are not changed.
    growing : bool
        Only for models that predict clicks, in asynchronous training: whether the rows of embeddings take memory on
        servers only when they are used.

    Raises
    ------
    InputError
        If there is no such model, the width is not a number above 0 and up to 8, the seed is not a whole number, or the
        model has no table that could grow.
    """
    import torch

    size, seed = size_of(name, width=width), whole("seed", seed)
    if growing and size.name not in CLICKS:
        raise InputError(f"a growing {size.name}; only {' and '.join(CLICKS)} have tables that grow.")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _make(size, **({"growing": True} if growing else {}))


def n_parameters(name: str, *, width: float = 1.0) -> int:
    """Return how many parameters a model has, without allocating them.

    >>> n_parameters("vgg-16")
    138357544
    """
    import torch

    with torch.device("meta"):
        model = _make(size_of(name, width=width))
    return sum(parameter.numel() for parameter in model.parameters())


def loss(name: str) -> Callable[[nn.Module, Sequence[Tensor]], Tensor]:
    """Return the loss of a model: a function of (model, batch), the mean over the samples of the batch.

    >>> loss("dssm").__name__, loss("wide-deep").__name__
    ('cross_entropy', 'click_loss')
    """
    losses = import_module(f"{__name__}.networks")
    function: Callable[[nn.Module, Sequence[Tensor]], Tensor] = (
        losses.click_loss if canonical(name, more=("digits-like",)) in CLICKS else losses.cross_entropy
    )
    return function


def learning_rate(name: str) -> float:
    """Return a rate with which Adam lowers the loss of a `SMALL` model within some dozens of steps of 32 samples.

    >>> learning_rate("vgg-16"), learning_rate("wlm")
    (0.001, 0.03)
    """
    return _LEARNING_RATES.get(canonical(name, more=("digits-like",)), 0.01)


def _make(size: Size, **options: bool) -> nn.Module:
    model: nn.Module = getattr(import_module(f"{__name__}.networks"), _CLASSES[size.name])(size, **options)
    return model
