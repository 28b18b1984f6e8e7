"""`labkit train-policy`: train the network of a learned scheduler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli.options import flag_of, takes_scenario
from labkit.core.errors import InputError, unknown
from labkit.core.files import refuse_closed, refuse_unwritable
from labkit.core.outside import reproduction
from labkit.experiment.scenario import OPTIONS, Scenario
from labkit.system.printing import printable, terminal
from labkit.workloads.expressions import is_generated

if TYPE_CHECKING:
    from labkit.experiment.experiment import Experiment
    from labkit.learning.marl.trainer import Trainer
    from labkit.learning.settings import Setting
    from labkit.learning.training import Course, Trains

POLICIES = ("dl2", "marl")
DEFAULTS = {
    "dl2": ("dl2-16n", "dl2_jobs('short_48n', pattern='google')"),
    "marl": ("marl-4x20", "marl_jobs(load=5)"),
}
"""Cluster and trace that a policy is trained on where none is given."""

SLOT_S = 1200.0
SEED = 1
MANY = "repeatable: each episode draws one"
KNOWN_FIELDS = {"marl": {"interference", "slot_s"}, "dl2 as published": {"throughputs", "slot_s"}}
"""Fields of a scenario that simulations of their own know; those of dl2 know all."""


def _usual(which: int) -> str:
    """Return the clusters (0) or the traces (1) by default, for help."""
    return "; ".join(f"{policy}: {usual[which]}" for policy, usual in DEFAULTS.items())


@takes_scenario(trace=None)
def train_policy(
    policy: Annotated[str, typer.Argument(help="dl2 or marl")],
    cluster: Annotated[
        list[str],
        typer.Option(help=f"A preset or an expression; {MANY}.", show_default=_usual(0)),
    ] = [],  # noqa: B006
    trace: Annotated[
        list[str],
        typer.Option(help=f"A generator, or a file, of which episodes are windows; {MANY}.", show_default=_usual(1)),
    ] = [],  # noqa: B006
    throughputs: Annotated[
        list[str],
        typer.Option(
            help="A table of measured speeds, fitted: those that fit the trace, analytic: predicted, or of dl2 random: "
            f"a table of its own in each episode; {MANY}."
        ),
    ] = ["fitted"],  # noqa: B006
    interference: Annotated[
        str | None,
        typer.Option(help=OPTIONS["interference"].help, show_default="none; of marl: calibrated"),
    ] = None,
    slot_s: Annotated[
        float | None,
        typer.Option(
            "--slot",
            help="Seconds of a slot.",
            show_default="1200; of files, for the numbers of dl2, at events as in compare",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of weights and traces. The same seed gives the same weights.", show_default="1"),
    ] = None,
    lessons: Annotated[
        int | None,
        typer.Option(help="Updates by imitation of a teacher that knows all speeds (with --network)."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Updates by reinforcement learning.")] = None,
    held_out: Annotated[
        int,
        typer.Option(help="Held-out traces on which it is compared with rules (marl: traces of files).", min=0),
    ] = 10,
    network: Annotated[
        bool,
        typer.Option(
            "--network",
            help="dl2: train a network for these models alone; without it, the parameters of the policy that sees "
            "speeds. --lessons implies it.",
        ),
    ] = False,
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            help="Train the paper's own network. Rounds are traces; a lesson of dl2 is 100 mini-batches.",
        ),
    ] = False,
    warm_up: Annotated[
        str | None, typer.Option(help="dl2 with --published: scheduler that it imitates; '' for none.")
    ] = None,
    switch: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="With --published: a switch, e.g. rules=released; for marl a field of its recipe, e.g. shared=False.",
        ),
    ] = [],  # noqa: B006
    dask: Annotated[
        str | None,
        typer.Option(
            help="Use this Dask cluster: tcp://HOST:PORT, or the folder of `fab dask-up`. For marl's episodes, "
            "or for dl2 with --set clusters=K."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="File for the weights. A log (.csv) and the state for resuming are written beside it.")
    ] = Path("POLICY.safetensors"),
    log: Annotated[Path | None, typer.Option(help="A folder for TensorBoard's event files.", metavar="FOLDER")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="The learning curve: .html, .svg, .png or .json.", metavar="FILE")
    ] = None,
    keep_every: Annotated[int, typer.Option(help="Updates between two writes of weights and state.", min=1)] = 10,
    *,
    scenario: Scenario,
) -> None:
    """Train a scheduler's network on simulations. The same call resumes one that was stopped."""
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    out = Path(f"{policy}.safetensors") if out == Path("POLICY.safetensors") else out
    network = network or lessons is not None
    slot_s = _slot_s(
        slot_s, scenario, at_events=policy == "dl2" and not (network or published) and _from_files(trace, scenario)
    )
    _refuse_places(out, log=log, figure=figure)
    scenario = replace(scenario, slot_s=slot_s, interference=interference or scenario.interference)
    _refuse_unknown_fields(scenario, f"{policy}{' as published' * published}")
    updates = {"n_lessons": lessons, "n_rounds": rounds}
    _refuse_negative(updates)
    import torch

    from labkit.learning.settings import Setting
    from labkit.learning.training import Course

    torch.set_num_threads(1)  # so that the same seed gives the same weights
    course = Course(out=out, source=f"labkit {' '.join(sys.argv[1:])}", each=keep_every, log=log, say=_say)
    clusters, traces = _places(policy, cluster, trace, scenario)
    asked: dict[str, Any] = {"updates": updates, "seed": seed if seed is not None else scenario.seed or SEED}
    asked |= {"switch": switch, "published": published, "dask": dask, "figure": figure}
    if policy == "marl":
        if warm_up is not None or throughputs != ["fitted"]:
            raise InputError("marl learns from its own simulations; leave --warm-up and --throughputs out.")
        how = interference or ("calibrated" if "interference" not in scenario.changed else str(scenario.interference))
        _train_marl(course, clusters, traces, interference=how, held_out=held_out, **asked)
        return
    if throughputs != ["fitted"]:
        scenario = replace(scenario, throughputs=None)
    setting = Setting(clusters, traces, throughputs, scenario)
    _train_dl2(course, setting, held_out=held_out, warm_up=warm_up, network=network, **asked)


def _refuse_negative(updates: dict[str, int | None]) -> None:
    for name, value in updates.items():
        if value is not None and value < 0:
            raise InputError(f"--{name[2:]} is {value}; expected a number of updates >= 0.")


def _slot_s(typed_s: float | None, scenario: Scenario, *, at_events: bool) -> float | None:
    """Return the seconds of a slot: as typed, as the scenario says, or by default; None: it is decided at events."""
    slot_s = typed_s if typed_s is not None else scenario.slot_s
    if slot_s is not None and not slot_s > 0:
        raise InputError(f"--slot is {slot_s}; expected seconds > 0.")
    return slot_s if slot_s is not None or at_events else SLOT_S


def _from_files(trace: list[str], scenario: Scenario) -> bool:
    """Return whether episodes are windows of files, on which it is decided as in `compare`: at events by default."""
    traces = trace or [str(scenario.trace)] if scenario.trace or trace else []
    return bool(traces) and not any(is_generated(what) for what in traces)


def _places(
    policy: str, cluster: list[str], trace: list[str], scenario: Scenario
) -> tuple[Sequence[str | None], Sequence[str]]:
    """Return clusters and traces: those that were typed, else the scenario's, else those by default."""
    usual_cluster, usual_trace = DEFAULTS[policy]
    own = [str(scenario.cluster)] if scenario.cluster is not None else None
    there = [None] if scenario.profile is not None else [usual_cluster]  # a profile has a cluster of its own
    return cluster or own or there, trace or [str(scenario.trace) or usual_trace]


def _refuse_unknown_fields(scenario: Scenario, policy: str) -> None:
    """Raise if a scenario says what the episodes of a policy know nothing of, or what changes nothing for it."""
    for name in scenario.changed:
        if name == "prices":
            raise InputError("--prices: a policy learns to shorten jobs, whatever they cost; leave it out.")
        if policy in KNOWN_FIELDS and name not in KNOWN_FIELDS[policy]:
            raise InputError(
                f"{flag_of(name)}: {policy} learns in simulations of its own, which do not know it; leave it out. "
                "`labkit train-policy dl2` takes it."
            )


def _train_marl(
    course: Course, clusters: Sequence[str | None], traces: Sequence[str], *, interference: str,
    held_out: int, updates: dict[str, int | None], seed: int, switch: list[str], published: bool, dask: str | None,
    figure: Path | None,
) -> None:  # fmt: skip
    from labkit.experiment.on_dask import connect

    if published and dask is not None:
        raise InputError(
            f"--dask {dask}: MARL as published learns after each interval of a trace, in one process; leave --dask out."
        )
    trainer: Trains
    with connect(dask) as client:
        if published:
            trainer = reproduction("marl").published_trainer(
                list(map(str, clusters)), traces, interference=interference, seed=seed, options=updates, switches=switch
            )
        else:
            trainer = marl_trainer(
                list(map(str, clusters)), traces, interference=interference, seed=seed, options=updates,
                switches=switch,
                client=client,
            )  # fmt: skip
        whole = course.run(trainer)
    name = _name("marl", course.out, published=published)
    _end(course, trainer, figure=figure, whole=whole, name=name)
    if held_out and trainer.n_done and not published and any(not is_generated(what) for what in traces):
        from labkit.learning.marl.settings import Setting as Placing

        _judge(
            "marl", course.out, Placing(list(map(str, clusters)), traces, interference).held_out, n=held_out, name=name
        )


def _train_dl2(
    course: Course, setting: Setting, *, held_out: int, updates: dict[str, int | None], seed: int, switch: list[str],
    published: bool, warm_up: str | None, network: bool, dask: str | None, figure: Path | None,
) -> None:  # fmt: skip
    from labkit.learning.training import refuse_unfit_episodes

    trainer: Trains
    slot_s = float(setting.scenario.slot_s or SLOT_S)
    with ExitStack() as stack:
        if published:
            arguments: dict[str, Any] = {"slot_s": slot_s, "seed": seed, "settings": switch, "dask": dask}
            arguments["options"] = {name[2:]: value for name, value in updates.items()} | {"warm_up": warm_up}
            trainer = stack.enter_context(reproduction("dl2").lent_trainer(setting, **arguments))
        else:
            _refuse_switches(switch, warm_up, dask)
            refuse_unfit_episodes(setting)
            trainer = _trainer(setting, slot_s=slot_s, seed=seed, updates=updates, network=network)
        if published:
            refuse_unfit_episodes(setting, counts_alone=True)
        whole = course.run(trainer)
    name = _name("dl2", course.out, published=published)
    _end(course, trainer, figure=figure, whole=whole, name=name)
    if held_out and trainer.n_done and not published:
        _judge("dl2", course.out, setting.held_out, n=held_out, name=name)


def _trainer(setting: Setting, *, slot_s: float, seed: int, updates: dict[str, int | None], network: bool) -> Trains:
    """Return the trainer of the numbers of dl2, or of a network."""
    from labkit.learning.dl2 import Recipe, Trainer
    from labkit.learning.numbers import NumbersRecipe, NumbersTrainer

    switches = {name: value for name, value in updates.items() if value is not None}
    if not network:
        return NumbersTrainer(setting, slot_s, seed, NumbersRecipe(**switches), setting.plain())
    told: dict[str, Any] = {} if setting.is_plain else {"scenario": setting.plain()}
    return Trainer(setting, models=setting.models(), slot_s=slot_s, seed=seed, recipe=Recipe(**switches), **told)


def _name(policy: str, out: Path, *, published: bool) -> str:
    """Return the name of a trained policy as a scheduler."""
    return f"{policy}({'published=True, ' * published}weights='{out}')"


def _judge(policy: str, weights: Path, held_out: Callable[[int], Experiment], *, n: int, name: str) -> None:
    """Compare a policy with simple schedulers in the scenario of its training, and say which one to use."""
    from labkit.cli.sweep import tell
    from labkit.learning.judging import advice, judge

    table = judge(policy, weights, held_out, n=n)
    tell(table, metric="mean_jct_s", base=policy, as_json=False)
    print(printable(advice(table, name=name, policy=policy)))


def _refuse_switches(switches: Sequence[str], warm_up: str | None, dask: str | None) -> None:
    """Raise if switches are given for another network."""
    if switches or warm_up is not None or dask is not None:
        what = (
            f"--set {switches[0]}" if switches else f"--warm-up {warm_up}" if warm_up is not None else f"--dask {dask}"
        )
        raise InputError(
            f"{what} is a switch of DL2's own network; expected it with --published. Add that, or drop it."
        )


def _end(course: Course, trainer: Trains, *, figure: Path | None, whole: bool, name: str) -> None:
    """Draw the learning curve, and tell what there is now."""
    out = course.out
    if figure is not None:
        _draw(course, figure)
    if not whole:
        _say(
            f"stopped after {trainer.n_done} of {trainer.n_updates} updates; {out} has its weights, the same call "
            "continues"
        )
        raise typer.Exit(130)
    told = f"{out}: trained on {trainer.slots:,} slots; labkit compare ..."
    print(f'{told} --schedulers "{name}"')


def _refuse_places(out: Path, *, log: Path | None, figure: Path | None) -> None:
    """Refuse what cannot be written: rather now than after the training.

    Raise InputError, which names the file or the folder.
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


def marl_trainer(
    clusters: Sequence[str],
    traces: Sequence[str],
    *,
    interference: str,
    seed: int,
    options: dict[str, int | None],
    switches: Sequence[str],
    client: Any = None,
) -> Trainer:
    """Return a trainer of the placement policy.

    Raise InputError if there is no such switch, its value cannot be, or a job of the traces fits no machine.

    Parameters
    ----------
    options : dict
        `n_lessons`, `n_rounds`; None: as in `labkit.learning.marl.trainer.Recipe`.
    switches : sequence of str
        Others of the recipe, each NAME=VALUE; `shared=False` is a head for each pod, `n_agents` of them.
    client : Client, optional
        Of a Dask cluster, which plays traces.
    """
    from labkit.learning.marl.settings import Setting
    from labkit.learning.marl.trainer import Recipe, Trainer

    plain = Recipe()
    shared, rest = _shared(switches)
    values: dict[str, Any] = dict(_switch(text, plain) for text in rest)
    values |= {name: value for name, value in options.items() if value is not None}
    setting = Setting(clusters, traces, interference)
    setting.refuse_unfit()
    if not shared:
        values.setdefault("n_agents", setting.n_pods)
    return Trainer(setting, seed=seed, recipe=Recipe(**values), where=client)


def _shared(switches: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether all pods share weights, and the other switches.

    >>> _shared(["shared=False", "n_draws=8"])
    (False, ['n_draws=8'])
    """
    named = [text.partition("=")[2].strip().lower() for text in switches if text.partition("=")[0].strip() == "shared"]
    if any(value not in ("true", "false") for value in named):
        raise InputError(f"--set shared={named[-1]}: expected True (one head for all pods) or False (one for each).")
    return "false" not in named[-1:], [text for text in switches if text.partition("=")[0].strip() != "shared"]


def _switch(text: str, plain: object) -> tuple[str, Any]:
    """Return the name and the value of a switch of the recipe: "n_agents=4" -> "n_agents", 4."""
    name, _, value = text.partition("=")
    known = [field.name for field in fields(plain)]  # type: ignore[arg-type]
    if name not in known:
        raise unknown("switch of marl", name, [*known, "shared"])
    default = getattr(plain, name)
    try:
        if isinstance(default, bool):
            return name, {"true": True, "false": False}[value.strip().lower()]
        made = type(default)(value)
    except (ValueError, KeyError):
        raise InputError(f"--set {text}: {value!r} is not a valid value; expected one such as {default}.") from None
    if not made >= 0:
        raise InputError(f"--set {text}: expected a number >= 0, such as {default}.")
    return name, made
