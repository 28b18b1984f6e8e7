"""`labkit train-policy`: train the network of a learned scheduler."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli.train_marl import lent_marl_trainer
from labkit.core.errors import InputError, unknown
from labkit.core.files import refuse_closed, refuse_unwritable
from labkit.core.outside import reproduction
from labkit.system.printing import terminal

if TYPE_CHECKING:
    from labkit.learning.training import Course, Trains

POLICIES = ("dl2", "marl")
DEFAULTS = {
    "dl2": ("dl2-16n", "dl2_jobs('short_48n', pattern='google')"),
    "marl": ("marl-4x20", "marl_jobs(load=5)"),
}
"""Cluster and trace that a policy is trained on where none is given."""
MANY = "repeatable: each episode draws one"


def train_policy(
    policy: Annotated[str, typer.Argument(help="dl2 or marl")],
    cluster: Annotated[
        list[str],
        typer.Option(help=f"A preset or an expression; {MANY}. [default: dl2-16n, marl-4x20]", show_default=False),
    ] = [],  # noqa: B006
    trace: Annotated[
        list[str],
        typer.Option(
            help=f"A generator; {MANY}. [default: dl2_jobs('short_48n', pattern='google'), marl_jobs(load=5)]",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    interference: Annotated[
        str, typer.Option(help="Of marl: how co-located jobs slow each other: none, mild, calibrated, or a FILE.")
    ] = "calibrated",
    throughputs: Annotated[
        list[str],
        typer.Option(
            help=f"A table of measured speeds, fitted: those that fit the trace, or analytic: predicted; {MANY}."
        ),
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
            "--published",
            help="Train the paper's own network: rounds are traces; dl2's lessons are a hundred mini-batches each.",
        ),
    ] = False,
    warm_up: Annotated[
        str | None, typer.Option(help="Of dl2, with --published: the scheduler that it imitates; '' for none.")
    ] = None,
    switch: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="With --published: a switch, e.g. rules=released; of marl, any of its recipe, e.g. shared=False.",
        ),
    ] = [],  # noqa: B006
    dask: Annotated[
        str | None,
        typer.Option(
            help="On this Dask cluster, tcp://HOST:PORT or `fab dask-up`'s folder: marl's plays of a trace, or dl2 "
            "with --set clusters=K."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Weights; beside them a log (.csv), and the state from which the same call goes on.")
    ] = Path("POLICY.safetensors"),
    log: Annotated[Path | None, typer.Option(help="A folder for TensorBoard's event files.", metavar="FOLDER")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="The learning curve: .html, .svg, .png or .json.", metavar="FILE")
    ] = None,
    keep_every: Annotated[int, typer.Option(help="Updates after which weights and state are written.", min=1)] = 10,
) -> None:
    """Train a scheduler's network on simulations. The same call goes on where one that was stopped ended."""
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    out = Path(f"{policy}.safetensors") if out == Path("POLICY.safetensors") else out
    cluster, trace = cluster or [DEFAULTS[policy][0]], trace or [DEFAULTS[policy][1]]
    if not slot > 0:
        raise InputError(f"--slot is {slot}; expected seconds > 0.")
    _refuse_places(out, log=log, figure=figure)
    import torch

    from labkit.learning.dl2 import Recipe, Trainer
    from labkit.learning.settings import Setting
    from labkit.learning.training import Course, refuse_unfit_episodes

    torch.set_num_threads(1)  # so that the same seed gives the same weights
    given = {"n_lessons": lessons, "n_rounds": rounds}
    for name, value in given.items():
        if value is not None and value < 0:
            raise InputError(f"--{name[2:]} is {value}; expected a number of updates >= 0.")
    trainer: Trains
    course = Course(out=out, source=f"labkit {' '.join(sys.argv[1:])}", each=keep_every, log=log, say=_say)
    if policy == "marl":
        if warm_up is not None or throughputs != ["fitted"]:
            raise InputError("marl learns from its own simulations; leave --warm-up and --throughputs out.")
        placed: dict[str, Any] = {"interference": interference, "seed": seed, "options": given, "given": switch}
        with _placement_trainer(cluster, trace, published=published, dask=dask, **placed) as trainer:
            whole = course.run(trainer)
        _end(course, trainer, figure=figure, whole=whole, kind="published=True, " if published else "")
        return
    setting = Setting(cluster, trace, throughputs)
    with ExitStack() as stack:
        if published:
            theirs: dict[str, Any] = {"slot_s": slot, "seed": seed, "given": switch, "dask": dask}
            theirs["options"] = {"lessons": lessons, "rounds": rounds, "warm_up": warm_up}
            trainer = stack.enter_context(reproduction("dl2").lent_trainer(setting, **theirs))
        else:
            _refuse_switches(switch, warm_up, dask)
            recipe = Recipe(**{name: value for name, value in given.items() if value is not None})
            trainer = Trainer(setting, models=setting.models(), slot_s=slot, seed=seed, recipe=recipe)
        refuse_unfit_episodes(setting)
        whole = course.run(trainer)
    _end(course, trainer, figure=figure, whole=whole, kind="published=True, " if published else "", policy="dl2")


@contextmanager
def _placement_trainer(
    cluster: list[str], trace: list[str], *, published: bool, dask: str | None, **options: Any
) -> Iterator[Trains]:
    """Lend the trainer of a placement policy: of ours, or of the networks as published."""
    if not published:
        with lent_marl_trainer(cluster, trace, dask=dask, **options) as trainer:
            yield trainer
        return
    if dask is not None:
        raise InputError(
            f"--dask {dask}: MARL as published learns after each interval of a trace, in one process; leave --dask out."
        )
    yield reproduction("marl").published_trainer(cluster, trace, **options)


def _refuse_switches(given: Sequence[str], warm_up: str | None, dask: str | None) -> None:
    """Raise if switches are given for another network."""
    if given or warm_up is not None or dask is not None:
        what = f"--set {given[0]}" if given else f"--warm-up {warm_up}" if warm_up is not None else f"--dask {dask}"
        raise InputError(
            f"{what} is a switch of DL2's own network; expected it with --published. Add that, or drop it."
        )


def _end(
    course: Course,
    trainer: Trains,
    *,
    figure: Path | None,
    whole: bool,
    kind: str,
    policy: str = "marl",
) -> None:
    """Draw the learning curve, and tell what there is now."""
    out = course.out
    if figure is not None:
        _draw(course, figure)
    if not whole:
        _say(
            f"stopped after {trainer.n_done} of {trainer.n_updates} updates; {out} has its weights, the same call "
            "goes on"
        )
        raise typer.Exit(130)
    told = f"{out}: trained on {trainer.slots:,} slots; labkit compare ..."
    print(f"{told} --schedulers \"{policy}({kind}weights='{out}')\"")


def _refuse_places(out: Path, *, log: Path | None, figure: Path | None) -> None:
    """Refuse what cannot be written: rather now than after the training.

    Raises
    ------
    InputError
        It names the file or the folder.
    """
    refuse_unwritable(out, endings=(".safetensors",))
    for path in (out, figure):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"{path}: the folder {path.parent} is not there; make it, or name another one.")
    if log is not None:
        if log.exists() and not log.is_dir():
            raise InputError(f"--log {log} is a file; expected a folder.")
        refuse_closed(log)
    if figure is not None:
        refuse_unwritable(figure, endings=(".html", ".svg", ".png", ".json"))


def _say(line: str) -> None:
    terminal(sys.stderr).print(line, soft_wrap=True)


def _draw(course: Course, figure: Path) -> None:
    """Write the learning curve of a training so far."""
    from labkit.learning.training import read
    from labkit.plots.training import plot_learning

    plot_learning(read(course.table), heading=f"Learning curve of {course.out.stem}").save(figure)
