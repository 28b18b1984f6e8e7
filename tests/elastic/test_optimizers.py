"""Optimizers: torch's bits, whatever the cut; a plain twin of the kernels; names and values that cannot be."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import optim

from labkit.core.errors import InputError
from labkit.elastic.server.optimizers import OPTIMIZERS, Optimizer, optimizer
from tests.elastic.rounding import assert_torch_s

N = 4_099  # a prime: torch's vector code has a rest to do one by one
SQUARE_ROOT = torch.Tensor.sqrt


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gradients(n: int, step: int) -> np.ndarray:
    """Of many orders of magnitude; some zero of both signs, all of them at step 3."""
    rng = np.random.default_rng(step)
    grad = rng.standard_normal(n) * 10.0 ** rng.uniform(-6, 1, n) * (rng.random(n) > 0.05) * (step != 3)
    return grad.astype(np.float32)


def first_parameters(n: int) -> np.ndarray:
    return np.random.default_rng(99).standard_normal(n).astype(np.float32)


def bits(array) -> np.ndarray:
    return np.asarray(array).view(np.int32)


CASES = [
    ("sgd", {"lr": 0.1}, optim.SGD, {}),
    ("sgd", {"lr": 0.1, "weight_decay": 0.01}, optim.SGD, {}),
    ("momentum", {"lr": 0.01}, optim.SGD, {"momentum": 0.9}),
    ("momentum", {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.1}, optim.SGD, {}),
    ("momentum", {"lr": 0.01, "nesterov": True}, optim.SGD, {"momentum": 0.9}),
    ("momentum", {"lr": 0.01, "nesterov": True, "weight_decay": 0.1}, optim.SGD, {"momentum": 0.9}),
    ("adam", {}, optim.Adam, {}),
    ("adam", {"lr": 0.01, "betas": (0.3, 0.99), "eps": 1e-3}, optim.Adam, {}),
    ("adam", {"weight_decay": 0.1}, optim.Adam, {}),
    ("adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}, optim.AdamW, {"decoupled_weight_decay": None}),
]
STATE = {"velocity": "momentum_buffer", "mean": "exp_avg", "square": "exp_avg_sq"}


def both(name, options, kind, more, *, steps=30):
    """Train the same parameters here and with torch."""
    ours = optimizer(name, **options)
    param, state = first_parameters(N), ours.init(N)
    theirs = torch.from_numpy(param.copy()).requires_grad_()
    of_torch = kind([theirs], **{key: value for key, value in (options | more).items() if value is not None})
    for step in range(1, steps + 1):
        grad = gradients(N, step)
        ours.apply(param, grad, state, step=step)
        theirs.grad = torch.from_numpy(grad)
        of_torch.step()
    known = of_torch.state[theirs]
    return param, theirs.detach().numpy(), {n: (state[n], known[STATE[n]].numpy()) for n in ours.state_names}


@pytest.mark.parametrize(("name", "options", "kind", "more"), [c for c in CASES if c[0] != "adam"])
def test_sgd_and_momentum_have_the_bits_of_torch(name, options, kind, more):
    ours, theirs, state = both(name, options, kind, more)
    assert_torch_s(ours, theirs)
    for mine, known in state.values():
        assert_torch_s(mine, known)


@pytest.mark.parametrize(("name", "options", "kind", "more"), [c for c in CASES if c[0] == "adam"])
def test_adam_has_the_bits_of_torch_once_torch_rounds_its_square_root(name, options, kind, more, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "sqrt", lambda x: torch.from_numpy(np.sqrt(x.numpy())))  # IEEE 754: exact
    ours, theirs, state = both(name, options, kind, more)
    assert_torch_s(ours, theirs)
    for mine, known in state.values():
        assert_torch_s(mine, known)


@pytest.mark.parametrize(("name", "options", "kind", "more"), [c for c in CASES if c[0] == "adam"])
def test_adam_is_torch_as_it_is_within_a_unit_of_the_last_place_of_one(name, options, kind, more):
    ours, theirs, _ = both(name, options, kind, more)
    assert np.abs(ours - theirs).max() <= 4 * np.finfo(np.float32).eps


def test_torch_square_root_is_off_by_at_most_one_unit():
    x = np.abs(gradients(100_000, 1))
    assert np.abs(bits(torch.from_numpy(x).sqrt()) - bits(np.sqrt(x))).max() <= 1


@pytest.mark.parametrize(("name", "options", "kind", "more"), CASES)
def test_a_gradient_in_two_halves_gives_the_bits_of_their_sum(name, options, kind, more):
    chosen = optimizer(name, **options)
    whole, of_whole = first_parameters(N), chosen.init(N)
    halves, of_halves = first_parameters(N), chosen.init(N)
    for step in range(1, 9):
        one, other = gradients(N, step), gradients(N, step + 100)
        chosen.apply(whole, one + other, of_whole, step=step, scale=1 / 3)
        chosen.apply(halves, one, of_halves, step=step, scale=1 / 3, plus=other)
    np.testing.assert_array_equal(bits(whole), bits(halves))
    for state in chosen.state_names:
        np.testing.assert_array_equal(bits(of_whole[state]), bits(of_halves[state]))
    with pytest.raises(InputError, match="gradients are float32"):
        chosen.apply(halves, one, of_halves, step=9, plus=other[1:])


# --- the plain twin


def fma(a, b, c):
    """Return a b + c of float32, rounded once: in float64 rounded to odd, after which no second rounding can hurt.

    Boldo and Melquiond, "When double rounding is odd", 2005: the product is exact, two-sum gives the error of the sum.
    """
    product_, c = np.float64(a) * np.float64(b), np.float64(c) + np.zeros(np.shape(a))
    total = product_ + c
    part = total - product_
    error = (product_ - (total - part)) + (c - part)
    raw = total.view(np.int64).copy()
    inexact_even = (error != 0) & (raw & 1 == 0)
    raw += np.where(inexact_even, np.where((error > 0) == (total > 0), 1, -1), 0)
    return raw.view(np.float64).astype(np.float32)


def plain(name, options, param, grad, state, step):
    """One update, operation by operation."""
    f = np.float32
    lr, decay = options["lr"], options["weight_decay"]
    if name == "adam":
        (b1, b2), apart = options["betas"], options["decoupled_weight_decay"]
        param = param * f(1 - lr * decay) if apart else param
        g = fma(param, f(decay), grad) if decay and not apart else grad
        part = f(1 - b1)
        state["mean"] = (
            fma(g - state["mean"], part, state["mean"]) if part < 0.5 else fma(g - state["mean"], part - f(1), g)
        )
        state["square"] = fma(f(1 - b2) * g, g, state["square"] * f(b2))
        root = np.sqrt(state["square"]) / f((1 - b2**step) ** 0.5) + f(options["eps"])
        return param + f(-lr / (1 - b1**step)) * state["mean"] / root
    g = fma(param, f(decay), grad) if decay else grad
    if name == "momentum":
        keep = f(options["momentum"])
        state["velocity"] = state["velocity"] * keep + g
        g = fma(state["velocity"], keep, g) if options["nesterov"] else state["velocity"]
    return fma(g, f(-lr), param)


@pytest.mark.parametrize(("name", "options"), [case[:2] for case in CASES])
def test_kernels_have_the_bits_of_their_plain_twin(name, options):
    ours = optimizer(name, **options)
    param, state = first_parameters(N), ours.init(N)
    twin, remembered = param.copy(), {key: value.copy() for key, value in state.items()}
    for step in range(1, 6):
        ours.apply(param, gradients(N, step), state, step=step)
        twin = plain(name, ours.options, twin, gradients(N, step), remembered, step)
        np.testing.assert_array_equal(bits(param), bits(twin))


def test_the_twins_fma_rounds_once():
    # 1 + 2^-24 is halfway; the product adds 2^-60, which a sum in float64 would lose
    a, b = np.float32([2.0**-30]), np.float32([2.0**-30])
    assert fma(np.float32([1 + 2**-12]), np.float32([1 + 2**-12]), np.float32([2.0**-13]))[0] > 1
    big = np.float32([1.0 + 2**-23])
    half = fma(big, np.float32([2.0**-24]), np.float32([1.0]))  # 1 + 2^-24 + 2^-47: above halfway
    assert half[0] == np.float32(1 + 2**-23)
    assert fma(a, b, np.float32([1.0]))[0] == 1


# --- cuts


@settings(max_examples=15)
@given(st.data())
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_however_the_vector_is_cut_the_bits_are_the_same(name, data):
    chosen = optimizer(name, lr=0.01, weight_decay=0.01)
    whole, cut = first_parameters(N), first_parameters(N)
    of_whole, of_cut = chosen.init(N), chosen.init(N)
    for step in range(1, 5):
        grad = gradients(N, step)
        chosen.apply(whole, grad, of_whole, step=step)
        edges = sorted({0, N, *data.draw(st.lists(st.integers(0, N), max_size=6))})
        for a, b in pairwise(edges):
            chosen.apply(cut[a:b], grad[a:b], {n: v[a:b] for n, v in of_cut.items()}, step=step)
    np.testing.assert_array_equal(bits(whole), bits(cut))
    for key in of_whole:
        np.testing.assert_array_equal(bits(of_whole[key]), bits(of_cut[key]))


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_scale_is_a_product_before_the_update(name):
    chosen = optimizer(name, lr=0.01, weight_decay=0.01)
    a, b, of_a, of_b = first_parameters(N), first_parameters(N), chosen.init(N), chosen.init(N)
    for step in (1, 2):
        grad = gradients(N, step)
        chosen.apply(a, grad * np.float32(1 / 3), of_a, step=step)
        chosen.apply(b, grad, of_b, step=step, scale=1 / 3)
    np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_tensors_and_read_only_gradients_are_taken_in_place(name):
    chosen = optimizer(name, lr=0.01)
    array, of_array = first_parameters(N), chosen.init(N)
    tensor = torch.from_numpy(first_parameters(N)).requires_grad_()
    of_tensor = {key: torch.from_numpy(value) for key, value in chosen.init(N).items()}
    received = np.frombuffer(gradients(N, 1).tobytes(), np.float32)  # as from a socket
    assert not received.flags.writeable
    chosen.apply(array, received, of_array, step=1)
    chosen.apply(tensor, torch.from_numpy(gradients(N, 1)), of_tensor, step=1)
    np.testing.assert_array_equal(bits(array), bits(tensor.detach().numpy()))


def test_an_empty_slice_is_no_trouble():
    chosen = optimizer("adam")
    chosen.apply(np.zeros(0, np.float32), np.zeros(0, np.float32), chosen.init(0), step=1)


def test_other_threads_go_on_during_an_update():
    chosen, n = optimizer("adam"), 4_000_000
    param, grad, state = np.ones(n, np.float32), np.ones(n, np.float32), chosen.init(n)
    stop, waits = threading.Event(), []
    began = time.perf_counter()
    chosen.apply(param, grad, state, step=1)
    one_update_s = time.perf_counter() - began

    def update() -> None:
        while not stop.is_set():
            chosen.apply(param, grad, state, step=1)

    thread = threading.Thread(target=update)
    thread.start()
    for _ in range(50):
        began = time.perf_counter()
        time.sleep(0)  # gives the interpreter away, and wants it back
        waits.append(time.perf_counter() - began)
    stop.set()
    thread.join()
    assert sorted(waits)[25] < one_update_s / 2


# --- by name


@pytest.mark.parametrize(("name", "options"), [case[:2] for case in CASES])
def test_an_optimizer_comes_back_from_json(name, options):
    chosen = optimizer(name, **options)
    assert isinstance(chosen, Optimizer)
    told = json.loads(json.dumps({"name": chosen.name, "options": chosen.options}))
    assert optimizer(told["name"], **told["options"]) == chosen


def test_state_is_named_in_order_of_the_alphabet_and_begins_at_zero():
    for name in OPTIMIZERS:
        chosen = optimizer(name, lr=0.1)
        assert list(chosen.state_names) == sorted(chosen.state_names) == list(chosen.init(3))
        assert all((vector == 0).all() and vector.dtype == np.float32 for vector in chosen.init(3).values())


def applied(n: int = 3, step: int = 1, **wrong):
    chosen = optimizer("momentum", lr=0.1)
    given = {"param": np.zeros(n, np.float32), "grad": np.zeros(n, np.float32), "state": chosen.init(n)} | wrong
    chosen.apply(given["param"], given["grad"], given["state"], step=step)


def read_only() -> np.ndarray:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: optimizer("adma"), "unknown optimizer 'adma'. Did you mean 'adam'?"),
        (lambda: optimizer("sgd", lr=0.1, wieght_decay=1), "Did you mean 'weight_decay'?"),
        (lambda: optimizer("sgd"), "sgd needs a learning rate"),
        (lambda: optimizer("momentum"), "momentum needs a learning rate"),
        (lambda: optimizer("sgd", lr=-1), "sgd: lr is -1; expected a number, 0 or more."),
        (lambda: optimizer("sgd", lr=float("nan")), "sgd: lr is nan"),
        (lambda: optimizer("sgd", lr="0.1"), "sgd: lr is '0.1'"),
        (lambda: optimizer("sgd", lr=True), "sgd: lr is True"),
        (lambda: optimizer("momentum", lr=0.1, momentum=1.0), "momentum: momentum is 1.0; expected a number, 0 or mor"),
        (lambda: optimizer("momentum", lr=0.1, nesterov=1), "momentum: nesterov is 1; expected True or False."),
        (lambda: optimizer("adam", betas=0.9), "adam: betas is 0.9; expected two numbers"),
        (lambda: optimizer("adam", betas=(0.9, 1.0)), "adam: betas is (0.9, 1.0); expected a number, 0 or more and"),
        (lambda: optimizer("adam", eps=float("inf")), "adam: eps is inf"),
        (lambda: applied(step=0), "momentum: update number 0; expected 1 for the first."),
        (lambda: applied(state={}), "momentum remembers ['velocity'], and was given []."),
        (lambda: applied(grad=np.zeros(4, np.float32)), "momentum: gradients are float32 (4,); expected float32 (3,)"),
        (lambda: applied(grad=np.zeros(3)), "momentum: gradients are float64 (3,)"),
        (lambda: applied(param=np.zeros(6, np.float32)[::2]), "momentum: parameters are float32 (3,); expected"),
        (lambda: applied(param=read_only()), "momentum: parameters cannot be written"),
        (lambda: applied(param=np.zeros((3, 1), np.float32)), "momentum: parameters are float32 (3, 1)"),
        (
            lambda: applied(grad=np.frombuffer(bytes(13), np.float32, count=3, offset=1)),
            "momentum: gradients are float32 (3,); expected float32 (3,), contiguous and aligned",
        ),
    ],
)
def test_wrong_input_is_named_in_one_line(wrong, message):
    with pytest.raises(InputError) as caught:
        wrong()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
