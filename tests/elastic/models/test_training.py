"""Real training: within 80 steps each model knows more than the frequencies of its targets."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from labkit.elastic import models
from labkit.elastic.data import dataset

N_STEPS, BATCH, LAST = 80, 32, 10
BATCHES = {"wide-deep": 128, "xdeepfm": 128}  # of the published 512: a click tells little
BEATS = {"wide-deep": 0.85, "xdeepfm": 0.85, "wlm": 0.8}  # else a half
"""The share of the loss of guessing that may be left."""


def samples_of(name: str):
    return dataset("digits-like" if name == "digits" else name, n=N_STEPS * 128, width=models.SMALL)


def guessing(targets: np.ndarray) -> float:
    """Return the loss of a model that knows how often each target occurs, and nothing else."""
    share = np.unique(targets, return_counts=True)[1] / targets.size
    return float(-(share * np.log(share)).sum())


def losses(name: str, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[float]:
    """Return the loss of each batch before it was trained on; no sample comes twice."""
    samples, loss, seen, batch = samples_of(name), models.loss(name), [], BATCHES.get(name, BATCH)
    for step in range(N_STEPS):
        optimizer.zero_grad()
        value = loss(model, samples.fetch(range(step * batch, (step + 1) * batch)))
        value.backward()
        optimizer.step()
        seen.append(float(value.detach()))
    return seen


@cache
def losses_with_adam(name: str) -> list[float]:
    model = models.build(name, width=models.SMALL)
    return losses(name, torch.optim.Adam(model.parameters(), lr=models.learning_rate(name)), model)


@pytest.mark.parametrize("name", models.available())
def test_adam_learns_what_the_samples_show(name):
    targets = samples_of(name).fetch(range(N_STEPS * BATCH))[-1].numpy()
    chance = np.log(models.size_of(name).n_classes) if name == "dssm" else guessing(targets)
    seen = losses_with_adam(name)
    assert np.mean(seen[-LAST:]) < BEATS.get(name, 0.5) * chance, f"guessing has {chance:.3f}, losses are {seen}"


@pytest.mark.parametrize("name", ["digits", "cnn-text-classification", "resnet-50", "wlm"])
def test_sgd_with_momentum_learns_too(name):
    model = models.build(name, width=models.SMALL)
    seen = losses(name, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)
    assert np.mean(seen[-LAST:]) < 0.8 * np.mean(seen[:LAST])


def test_word_model_cannot_know_more_than_its_teacher():
    """Each word follows one of four with 0.9 x (1/2, 1/4, 1/8, 1/8), else any: knowing that leaves 1.65 nats."""
    samples = samples_of("wlm")
    n_words = samples.size.n_words
    rank = np.arange(n_words)
    follows = np.tile(0.1 * np.log((rank + 2) / (rank + 1)) / np.log(n_words + 1), (n_words, 1))
    for nth, share in enumerate((1 / 2, 1 / 4, 1 / 8, 1 / 8)):
        np.add.at(follows, (rank, samples.successors[:, nth]), 0.9 * share)
    words = samples.fetch(range(2000))[0].numpy()
    least = -(follows * np.log(follows)).sum(axis=1)[words].mean()
    assert 0.95 * least < np.mean(losses_with_adam("wlm")[-LAST:]) < 1.5 * least
    assert least == pytest.approx(1.65, abs=0.01)
