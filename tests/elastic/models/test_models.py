"""What a model must do to be trained by parts: at any width, from names alone, each sample for itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from labkit.core.errors import InputError
from labkit.elastic import models
from labkit.elastic.data import dataset

NAMES = models.available()


def samples_of(name: str, *, width: float = models.SMALL):
    return dataset("digits-like" if name == "digits" else name, width=width)


def gradients(model: torch.nn.Module, name: str, batch) -> list[torch.Tensor]:
    model.zero_grad()
    models.loss(name)(model, batch).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("width", [0.01, 0.1, pytest.param(0.3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_of_every_model_learns_from_its_own_samples(name, width):
    model, batch = models.build(name, width=width), samples_of(name, width=width).fetch(range(8))
    first = gradients(model, name, batch)
    with (
        torch.no_grad()
    ):  # blocks of resnext begin as the identity: what lies inside them learns from the second step on
        for parameter, gradient in zip(model.parameters(), first, strict=True):
            parameter -= 0.01 * gradient
    second = gradients(model, name, batch)
    assert all(gradient.isfinite().all() for gradient in first + second)
    assert all(gradient.any() for gradient in second)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_a_batch_is_the_mean_over_its_shards(name):
    """What makes V logical shards possible (bit-identity): no sample's gradient depends on its batch."""
    model = models.build(name, width=models.SMALL).double()
    index = [7, 3, 100, 64, 9, 11, 2, 5, 80, 81, 82, 4]
    batch = [part.double() if part.is_floating_point() else part for part in samples_of(name).fetch(index)]
    whole = gradients(model, name, batch)
    shards = [gradients(model, name, [part[i : i + 3] for part in batch]) for i in range(0, 12, 3)]
    largest = max(gradient.abs().max() for gradient in whole)
    for gradient, parts in zip(whole, zip(*shards, strict=True), strict=True):
        torch.testing.assert_close(sum(parts) / 4, gradient, rtol=1e-9, atol=1e-12 * float(largest))


@pytest.mark.parametrize("name", NAMES)
def test_a_single_sample_is_a_batch_and_has_the_same_loss_in_company(name):
    model, samples, loss = models.build(name, width=models.SMALL), samples_of(name), models.loss(name)
    with torch.no_grad():
        alone = [float(loss(model, samples.fetch([i]))) for i in range(4)]
        together = float(loss(model, samples.fetch(range(4))))
    assert sum(alone) / 4 == pytest.approx(together, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_shard_has_the_same_gradient_bit_for_bit(name):
    model, batch = models.build(name, width=models.SMALL), samples_of(name).fetch(range(8))
    first, second = gradients(model, name, batch), gradients(model, name, batch)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_parameters_makes_a_model(name):
    """A checkpoint of the parameters is the whole model: no running means, no other buffers."""
    model = models.build(name, width=models.SMALL)
    assert not list(model.buffers())
    assert set(model.state_dict()) == {key for key, _ in model.named_parameters()}
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_first_parameters_and_leaves_other_random_numbers_alone(name):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, same, other = (list(models.build(name, width=0.05, seed=seed).parameters()) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["wlm", "seq2seq"])
def test_words_are_scored_without_looking_ahead(name):
    model = models.build(name, width=models.SMALL)
    *inputs, _ = samples_of(name).fetch([0, 1])
    changed = inputs[-1].clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 50
    before, after = model(*inputs), model(*inputs[:-1], changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_documents_are_scored_each_for_itself():
    model, (texts, _) = models.build("dssm", width=models.SMALL), samples_of("dssm").fetch(range(3))
    order = [3, 0, 4, 2, 1]
    shuffled = torch.cat([texts[:, :1], texts[:, 1:][:, order]], dim=1)
    torch.testing.assert_close(model(shuffled), model(texts)[:, order])


def test_interactions_of_xdeepfm_are_those_of_its_equation_6():
    model, (features, _) = models.build("xdeepfm", width=0.02), samples_of("xdeepfm", width=0.02).fetch([5])
    fields = model.embed(features)[0]  # (fields, dimensions)
    found, x = [], fields
    for weights in model.mix:  # x_h^k = sum_ij W_ij^kh (x_i^(k-1) o x_j^0)
        rows = [
            sum(w[i * len(fields) + j] * x[i] * fields[j] for i in range(len(x)) for j in range(len(fields)))
            for w in weights
        ]
        x = torch.stack(rows)
        found.append(x.sum(dim=1))
    expected = model.log_odds(features, fields[None]) + model.add(torch.cat(found))
    torch.testing.assert_close(model(features), expected, rtol=1e-3, atol=1e-4)


def test_a_block_of_resnext_begins_as_the_identity():
    model, (images, _) = models.build("resnext-110", width=models.SMALL), samples_of("resnext-110").fetch([0, 1])
    x = model.stem(images)
    torch.testing.assert_close(model.blocks[0](x), F.relu(x))


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("ResNet", "resnet-50"),
        (" vgg16 ", "vgg-16"),
        ("CTC", "cnn-text-classification"),
        ("cnn", "cnn-text-classification"),
        ("w&d", "wide-deep"),
        ("lm", "wlm"),
    ],
)
def test_aliases_of_the_catalogue_and_short_names_name_models(name, canonical):
    assert models.size_of(name).name == canonical


@pytest.mark.parametrize(
    "ask",
    [models.build, models.n_parameters, models.loss, models.size_of, models.learning_rate, dataset],
    ids=lambda ask: ask.__name__,
)
def test_a_misspelt_name_is_answered_with_the_nearest_in_one_line(ask):
    with pytest.raises(InputError, match=r"^unknown (model|dataset) 'vgg-61'\. Did you mean 'vgg-16'\? Known: [^\n]*$"):
        ask("vgg-61")


@pytest.mark.parametrize("width", [0, -1, 64, float("nan"), float("inf"), "0.1", None, True])
@pytest.mark.parametrize("ask", [models.build, models.n_parameters, dataset], ids=lambda ask: ask.__name__)
def test_a_wrong_width_is_named(ask, width):
    with pytest.raises(InputError, match=r"^width is [^\n]*; expected a number above 0 and up to 8[^\n]*$"):
        ask("wlm", width=width)


@pytest.mark.parametrize("seed", [-1, 0.5, "1", None, True, 2**63])
@pytest.mark.parametrize("ask", [models.build, dataset], ids=lambda ask: ask.__name__)
def test_a_wrong_seed_is_named(ask, seed):
    with pytest.raises(InputError, match=r"^seed is [^\n]*; expected a whole number from 0 to below 2\^63\.$"):
        ask("digits-like" if ask is dataset else "digits", seed=seed)


@pytest.mark.parametrize("name", ["wlm", "vgg-16", "resnet-50", "wide-deep", "dssm"])
def test_samples_of_another_width_are_named(name):
    model, batch = models.build(name, width=0.1), dataset(name, width=0.3).fetch(range(16))
    with pytest.raises(InputError, match=r"^this batch has [^\n]*Build the model and its dataset by one name"):
        models.loss(name)(model, batch)


@pytest.mark.parametrize(
    ("name", "other"), [("wlm", "seq2seq"), ("resnet-50", "digits-like"), ("digits", "vgg-16"), ("vgg-16", "wlm")]
)
def test_samples_of_another_model_are_named(name, other):
    model, batch = models.build(name, width=0.1), dataset(other, width=0.1).fetch(range(4))
    with pytest.raises(InputError, match=r"^this batch has another shape than the model takes [^\n]*$"):
        models.loss(name)(model, batch)


def test_other_faults_of_a_model_pass_as_they_are():
    class Broken(torch.nn.Module):
        def forward(self, images):
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        models.loss("digits")(Broken(), dataset("digits-like").fetch([0]))
