"""`labkit train-policy`: train the network of a learned scheduler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli_published import refuse_switches, trainer_of
from labkit.core.errors import InputError, unknown
from labkit.core.files import refuse_unwritable

if TYPE_CHECKING:
    from labkit.learning.dl2 import Trainer, Update
    from labkit.learning.published.trainer import Trainer as FlatTrainer

POLICIES = ("dl2",)
MANY = "as often as you like: each episode draws one"
KEPT_EACH = 10
"""Updates after which the state is written."""


def train_policy(
    policy: Annotated[str, typer.Argument(help="dl2")],
    cluster: Annotated[list[str], typer.Option(help=f"A preset or an expression; {MANY}.")] = ["dl2-16n"],  # noqa: B006
    trace: Annotated[list[str], typer.Option(help=f"A generator; {MANY}.")] = [  # noqa: B006
        "dl2_jobs('short_48n', pattern='google')"
    ],
    throughputs: Annotated[
        list[str], typer.Option(help=f"A table of measured speeds, or fitted: those that fit the trace; {MANY}.")
    ] = ["fitted"],  # noqa: B006
    slot: Annotated[float, typer.Option(help="Seconds of a slot.")] = 1200.0,
    seed: Annotated[int, typer.Option(help="Of weights and traces; the same one gives the same weights.")] = 1,
    lessons: Annotated[
        int | None, typer.Option(help="Updates in which it imitates a teacher that knows all speeds.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Updates in which it learns by itself.")] = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published", help="Train DL2's own network: lessons are hundreds of mini-batches, rounds traces."
        ),
    ] = False,
    warm_up: Annotated[
        str | None, typer.Option(help="With --published: the scheduler that it imitates; '' for none.")
    ] = None,
    switch: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="With --published: a switch, e.g. rules=released.")
    ] = [],  # noqa: B006
    out: Annotated[
        Path, typer.Option(help="Weights, and beside them the state from which the same call goes on.")
    ] = Path("dl2.safetensors"),
) -> None:
    """Train a scheduler's network on simulations. The same call goes on where one that was stopped ended."""
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    if not slot > 0:
        raise InputError(f"--slot is {slot}; expected seconds > 0.")
    refuse_unwritable(out, endings=(".safetensors",))
    import torch

    from labkit.learning.dl2 import Recipe, Trainer
    from labkit.learning.settings import Setting

    torch.set_num_threads(1)  # so that the same seed gives the same weights
    given = {"n_lessons": lessons, "n_rounds": rounds}
    for name, value in given.items():
        if value is not None and value < 0:
            raise InputError(f"--{name[2:]} is {value}; expected a number of updates >= 0.")
    setting = Setting(cluster, trace, throughputs)
    trainer: Trainer | FlatTrainer
    if published:
        options = {"lessons": lessons, "rounds": rounds, "warm_up": warm_up}
        trainer = trainer_of(setting, slot_s=slot, seed=seed, given=switch, options=options)
    else:
        refuse_switches(switch, warm_up)
        recipe = Recipe(**{name: value for name, value in given.items() if value is not None})
        trainer = Trainer(setting, models=setting.models(), slot_s=slot, seed=seed, recipe=recipe)
    _train(trainer, out=out, state=out.with_suffix(".state"), source=f"labkit {' '.join(sys.argv[1:])}")
    kind = "published=True, " if published else ""
    told = f"{out}: trained on {trainer.slots:,} slots; labkit compare ..."
    print(f"{told} --schedulers \"dl2({kind}weights='{out}')\"")


def _train(trainer: Trainer | FlatTrainer, *, out: Path, state: Path, source: str) -> None:
    """Train, and keep weights and state each few updates and at the end."""
    from rich.console import Console

    told = Console(stderr=True)
    if state.exists():
        trainer.go_on(_read(state))
        told.print(f"going on after {trainer.n_done} of {trainer.n_updates} updates")
    for update in trainer.updates():
        if trainer.n_done % KEPT_EACH == 0 or trainer.n_done == trainer.n_updates:
            _keep(trainer, out=out, state=state, source=source)
            told.print(_line(update, trainer.n_updates), highlight=False, soft_wrap=True)


def _line(update: Update, n_updates: int) -> str:
    return (
        f"{update.number + 1:>5} of {n_updates} {update.kind:6} mean JCT {update.mean_jct:6.3f} slots, entropy "
        f"{update.entropy:4.2f}, {update.slots:>9,} slots seen, {update.cpu_s:5.0f} CPU s"
    )


def _keep(trainer: Trainer | FlatTrainer, *, out: Path, state: Path, source: str) -> None:
    """Write weights and state, each whole or not at all."""
    import torch

    trainer.weights(source).save(out)
    temporary = state.with_suffix(".state.tmp")
    torch.save(trainer.state(), temporary)
    temporary.replace(state)


def _read(path: Path) -> dict[str, Any]:
    """Return a state.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    import pickle

    import torch

    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"{path}: not the state of a training ({reason}); delete it to begin anew.") from None
    return state
