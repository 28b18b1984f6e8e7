"""Options about what is simulated: each field of a `Scenario` is one, wherever a command takes a scenario."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from labkit.cli import help as cli_help
from labkit.core.errors import InputError
from labkit.experiment.scenario import DEFAULTS, FORMER, OPTIONS, Scenario, current

if TYPE_CHECKING:
    from labkit.results.record import RunRecord

FILE: Final = "scenario_file"
RUN: Final = "run.json"
Trace = Annotated[
    Path,
    typer.Argument(
        help="A file, the name of a shipped trace (`labkit traces list`), a generator such as 'poisson(80, "
        "per_hour=12)', or the run.json of a run.",
        metavar="TRACE", show_default=False, autocompletion=cli_help.traces,
    ),
]  # fmt: skip
Cluster = Annotated[
    str | None,
    typer.Option(
        help="A preset (`labkit clusters`), an expression such as 'fat_tree(4)', or hosts.toml. Default: the "
        "profile's, else the preset of the trace's name (demo), else gavel-36x3.",
        autocompletion=cli_help.clusters,
    ),
]

ScenarioFile = Annotated[
    Path | None,
    typer.Option(
        "--scenario",
        help="Take options from a scenario file (TOML, one line per option). Options given here override it.",
        metavar="FILE",
    ),
]


def takes_scenario(*, trace: Any = Trace, machines: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a command whose function has a parameter `scenario` take a trace, `--scenario`, and each field as an option.

    The function gets a `Scenario`, made of the file that `--scenario` names, if any, and of what was typed; with the
    trace "" where none was. A field of which it has a parameter itself is its own business.

    `trace`: the annotation of the trace, as typer reads it; None: the function takes it itself; `machines`: only fields
    that a run on machines has, too; no cluster.
    """

    def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters
        names = [name for name, option in OPTIONS.items() if not (machines and option.simulated) and name not in own]
        formers = [former for former, name in FORMER.items() if name in names]
        parameters: list[inspect.Parameter] = [] if trace is None else [_parameter("trace", trace, None)]
        for each in own.values():
            if each.name == "scenario":
                parameters += [] if machines or "cluster" in own else [_parameter("cluster", Cluster, None)]
                parameters += [*map(_option, names), *map(_former, formers), _parameter(FILE, ScenarioFile, None)]
            else:
                parameters.append(_parameter(each.name, hints[each.name], each.default))

        @wraps(function)
        def command(context: typer.Context, **words: Any) -> Any:
            file = words.pop(FILE)
            fields = [name for name in ("trace", "cluster") if name not in own] + names
            typed = {name: words.pop(name) for name in fields if name in words}
            old = {name: words.pop(name) for name in formers if name in words}
            if file is not None or _is_run(typed.get("trace")):
                typed = {name: value for name, value in typed.items() if _is_typed(context, name)}
            for former, value in old.items():
                if value is not None:
                    field = FORMER[former]
                    typed = current(
                        {name: typed[name] for name in typed if name != field or _is_typed(context, name)}
                        | {former: value}
                    )
            made, record = _scenario(file, typed)
            return function(scenario=made, **words | _own_scheduler(context, words, record))

        signature = inspect.Signature([_parameter("context", typer.Context, inspect.Parameter.empty), *parameters])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        return command

    return with_options


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(name: str) -> inspect.Parameter:
    """Return the parameter of a field, as typer reads it."""
    option, default = OPTIONS[name], DEFAULTS[name]
    kind: Any = option.kind | None if default is None or option.kind is Path else option.kind
    least = option.least if option.least > -math.inf else None
    words = typer.Option(flag_of(name), help=option.help, metavar=option.metavar or None, min=least)
    return _parameter(name, Annotated[kind, words], default)


def _former(name: str) -> inspect.Parameter:
    """Return the parameter of a field's former name, which no help text mentions."""
    kind: Any = OPTIONS[FORMER[name]].kind | None
    return _parameter(name, Annotated[kind, typer.Option(f"--{name}", hidden=True)], None)


def flag_of(name: str) -> str:
    """Return the name of a field on the command line.

    >>> flag_of("slot_s"), flag_of("any_type")
    ('--slot', '--any-type')
    """
    return OPTIONS[name].flag or f"--{name.removesuffix('_s').replace('_', '-')}"


def _is_run(trace: Path | None) -> bool:
    return trace is not None and trace.name == RUN


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def _own_scheduler(context: typer.Context, words: dict[str, Any], record: RunRecord | None) -> dict[str, str]:
    """Return the scheduler of a run as an argument, for a command of one scheduler where none is typed."""
    if record is None or "scheduler" not in words or _is_typed(context, "scheduler"):
        return {}
    from labkit.experiment.run import scheduler_of

    return {"scheduler": scheduler_of(record)}


def _scenario(file: Path | None, typed: dict[str, Any]) -> tuple[Scenario, RunRecord | None]:
    """Return the scenario that was typed, and the run that it is of, if it is of one."""
    trace = typed.pop("trace", None)
    if trace is not None and _is_run(trace):
        from labkit.results.store import load

        if file is not None:
            raise InputError(f"both {trace} and --scenario {file} are given; leave one out.")
        record = load(trace.parent)
        return Scenario.of_run(record, **typed), record
    if file is None:
        return Scenario.of(trace or "", **typed), None
    return Scenario.read(file, **typed, **({} if trace is None else {"trace": str(trace)})), None


def refuse_no_trace(scenario: Scenario) -> None:
    """Raise if neither a trace nor a scenario with one was given."""
    if isinstance(scenario.trace, str) and not scenario.trace:
        raise InputError("no trace is given; name a file, a shipped trace such as demo, or a --scenario.")
