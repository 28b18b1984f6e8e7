"""At width 1 a model has the published number of parameters, and takes what its dataset gives."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch

from labkit.elastic import models
from labkit.elastic.data import dataset
from labkit.workloads import catalogue

OFF = {"wlm": 0.031}  # 10,000 words and 200 units, both published, make 4.65 million; DL2's Table 1 has 4.8
NAMES = [model.name for model in catalogue.models()]


def published(name: str) -> torch.nn.Module:
    with torch.device("meta"):
        return models.build(name)


@pytest.mark.parametrize("name", NAMES)
def test_published_size_is_that_of_the_catalogue_within_one_percent(name):
    assert models.n_parameters(name) == pytest.approx(catalogue.model(name).n_parameters, rel=OFF.get(name, 0.01))


def test_every_model_of_the_catalogue_can_be_trained():
    assert set(models.available()) == {*NAMES, "digits"}


def test_vgg_16_has_the_138_million_of_its_layers():
    widths = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)  # Simonyan and Zisserman, table 1 D
    convolutions = sum((9 * a + 1) * b for a, b in pairwise(widths))
    linear = sum((a + 1) * b for a, b in ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)))
    assert models.n_parameters("vgg-16") == convolutions + linear == 138_357_544


@pytest.mark.parametrize(("name", "more_classes"), [("resnet-50", 0), ("inception-bn", 1000 - 257)])
def test_tensors_and_parameters_are_those_that_optimus_distributes(name, more_classes, shared_data):
    reference = json.loads(shared_data("optimus/paa_reference.json").read_text())["models"][name]
    parameters = list(published(name).parameters())
    n_inputs = parameters[-2].shape[1]
    assert len(parameters) == reference["blocks"]
    assert sum(p.numel() for p in parameters) + more_classes * (n_inputs + 1) == reference["params"]


def test_resnet_50_has_the_tensors_of_optimus_table_3():
    parameters = list(published("resnet-50").parameters())
    assert (len(parameters), sum(p.numel() for p in parameters)) == (157, 25_549_486)


def test_word_model_is_two_lstm_layers_of_200_between_10_000_words():
    layer = 4 * 200 * (200 + 200 + 2)  # Zaremba et al. 2014, small; two biases a gate, as cuDNN has them
    assert models.n_parameters("wlm") == 10_000 * 200 + 2 * layer + 200 * 10_000 + 10_000


@pytest.mark.parametrize("name", NAMES)
def test_published_model_takes_the_published_samples(name):
    model, batch = published(name), [part.to("meta") for part in dataset(name, n=2).fetch([0, 1])]
    scores = model(*batch[:-1])
    targets = batch[-1]
    assert scores.shape[: targets.ndim] == targets.shape
    assert models.loss(name)(model, batch).shape == ()


@pytest.mark.parametrize("name", models.available())
def test_parameters_grow_with_the_width(name):
    counts = [models.n_parameters(name, width=width) for width in (0.05, 0.1, 0.3, 0.6, 1.0, 1.5)]
    assert counts == sorted(counts)
    assert counts[-1] > counts[-2] > counts[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_tenth_of_the_width_is_about_a_hundredth_of_the_parameters_or_less(name):
    assert models.n_parameters(name, width=models.SMALL) < 0.015 * models.n_parameters(name)
