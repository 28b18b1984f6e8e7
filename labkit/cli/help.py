"""What `labkit` alone and `--help` show: where to begin, commands in panels, examples; and what a shell completes."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from typing import Final

import typer

from labkit.core.errors import InputError
from labkit.system.release import how_to_get

BEGIN: Final = """\
labkit {version}: a laboratory for deep-learning cluster scheduling

To begin, in this order:

  labkit compare demo --cluster demo
      compare six schedulers on 80 jobs: a table within seconds
  labkit compare demo --cluster demo --arrival-rate 2 --report report.html
      double the arrival rate, and write a report with figures for the browser
  labkit demo
      the same, and train three small models here (a minute or two)

labkit --help lists all commands, labkit compare --help shows one of them;
labkit doctor checks this machine. After labkit --install-completion
the shell completes commands, options and names on <Tab>."""

SIMULATE, LOOK, TESTBED = "Simulate", "Look at runs", "Testbed: the same on machines"
TRAIN, DATA, MACHINE = "Train", "Traces, clusters, schedulers", "This machine"

COMMANDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "compare": (
        SIMULATE,
        (
            "labkit compare demo --cluster demo",
            "labkit compare mine.csv --cluster 'fat_tree(8)' --schedulers 'srtf,las(threshold_gpu_s=7200)' --slot 600",
        ),
    ),
    "replay": (SIMULATE, ("labkit replay export.txt --cluster hosts.toml --schedulers easy,slurm",)),
    "sweep": (
        SIMULATE,
        (
            "labkit sweep --trace 'poisson(80, per_hour=60)' --cluster demo --schedulers fifo,srtf --seeds 10 "
            "--folder sweeps/rates --set arrival_rate=1,2",
        ),
    ),
    "tune": (
        SIMULATE,
        (
            "labkit tune las --trace 'poisson(40, per_hour=30)' --cluster 'no_network(2)' "
            "--param threshold_gpu_s=60:36000:log --trials 10",
        ),
    ),
    "simulate": (SIMULATE, ("labkit simulate demo --cluster demo --scheduler srtf",)),
    "demo": (SIMULATE, ("labkit demo --no-testbed",)),
    "report": (LOOK, ("labkit report srtf-demo-0 --out reports/srtf.html",)),
    "runs": (LOOK, ("labkit runs list", "labkit runs compare fifo-demo-0 srtf-demo-0")),
    "runs list": ("", ("labkit runs list --scheduler srtf",)),
    "runs compare": ("", ("labkit runs compare fifo-demo-0 srtf-demo-0",)),
    "runs remove": ("", ("labkit runs remove srtf-demo-0",)),
    "figure": (LOOK, ("labkit figure fifo-demo-0 srtf-demo-0 --kind jct --out jct.pdf",)),
    "paper": (LOOK, ("labkit paper fifo-demo-0 srtf-demo-0 --out paper",)),
    "watch": (
        LOOK,
        ("labkit watch optimus-testbed-0", "labkit watch night", "labkit watch optimus-testbed-0 --browser"),
    ),
    "fidelity": (LOOK, ("labkit fidelity optimus-testbed-0 --profile profiles/laptop.json",)),
    "deploy": (
        TESTBED,
        (
            "labkit deploy testbed --scheduler optimus --inventory testbed/hosts.toml",
            "labkit deploy testbed --schedulers fifo,optimus --repeat 3 --time-limit 1h --name night --dry-run",
            "labkit deploy --resume night",
            "labkit deploy mine.csv --scheduler las --script mine=train/train.py --data mine=samples",
        ),
    ),
    "attach": (TESTBED, ("labkit attach optimus-testbed-0",)),
    "profile": (TESTBED, ("labkit profile --trace testbed",)),
    "bed": (TESTBED, ("labkit bed up --hosts 3", "labkit bed down")),
    "bed up": ("", ("labkit bed up --hosts 3",)),
    "bed down": ("", ("labkit bed down",)),
    "bed list": ("", ("labkit bed list",)),
    "bed status": ("", ("labkit bed status",)),
    "new": (SIMULATE, ("labkit new scheduler smallest_first",)),
    "new scheduler": ("", ("labkit new scheduler smallest_first",)),
    "train": (
        TRAIN,
        (
            "labkit train mine.py --steps 300 --patience 3",
            "labkit train cnn --steps 300 --at 100:+1ps",
            "labkit train wide_deep --auto",
        ),
    ),
    "train-policy": (
        TRAIN,
        (
            "labkit train-policy dl2 --cluster dl2-16n --out mine.safetensors",
            "labkit train-policy dl2 --quotas 'user=24' --mtbf 100000 --mttr 3600 --out mine.safetensors",
        ),
    ),
    "weights": (TRAIN, ("labkit weights show dl2",)),
    "weights show": ("", ("labkit weights show dl2", "labkit weights show mine.safetensors --json")),
    "traces": (DATA, ("labkit traces list", "labkit traces info demo")),
    "traces list": ("", ("labkit traces list",)),
    "traces info": ("", ("labkit traces info demo",)),
    "traces check": ("", ("labkit traces check jobs.csv --cluster testbed/hosts.toml",)),
    "traces fetch": ("", ("labkit traces fetch philly",)),
    "traces import": (
        "",
        ("labkit traces import jobs.csv", "labkit traces import jobs.csv --yes --map duration=run:min"),
    ),
    "clusters": (DATA, ("labkit clusters", "labkit clusters import nodes.txt -o hosts.toml")),
    "clusters import": (
        "",
        ("labkit clusters import nodes.txt partitions.txt -o hosts.toml", "labkit clusters import nodes.json"),
    ),
    "schedulers": (DATA, ("labkit schedulers",)),
    "doctor": (MACHINE, ("labkit doctor", "labkit doctor --inventory testbed/hosts.toml")),
}
"""Each command in the order of the help: its panel, and examples that can be typed as they are."""


Entry = typer.models.CommandInfo | typer.models.TyperInfo


def arrange(app: typer.Typer, *, within: str = "") -> None:
    """Give the commands of an application their panel and examples; one that the table does not know comes last."""
    order = {name: position for position, name in enumerate(COMMANDS)}
    entries: list[typer.models.CommandInfo | typer.models.TyperInfo] = [
        *app.registered_commands,
        *app.registered_groups,
    ]
    for entry in entries:
        name = f"{within} {named(entry)}".strip()
        if name not in COMMANDS:
            continue
        panel, examples = COMMANDS[name]
        if panel:
            entry.rich_help_panel = panel
        entry.epilog = "\n\n".join([f"Example{'s' * (len(examples) > 1)}:", *examples])
    for listed in (app.registered_commands, app.registered_groups):
        listed.sort(key=lambda entry: order.get(f"{within} {named(entry)}".strip(), len(order)))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            arrange(group.typer_instance, within=f"{within} {named(group)}".strip())


def add_refused(app: typer.Typer, name: str, *, missing: str) -> None:
    """Add in the place of a group of commands one that tells which package it lacks, and how to get it."""

    def refused() -> None:
        raise lacking(missing)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=f"Not here: {lacking(missing)}", context_settings=anything)(refused)


def lacking(package: str) -> InputError:
    """Return the error for a package that an extra of labkit brings.

    >>> str(lacking("optuna.samplers"))
    "the package optuna is missing; pip install 'cluster-labkit[tune]'"
    """
    return InputError(f"the package {package.partition('.')[0]} is missing; {how_to_get(package)}")


def named(entry: Entry) -> str:
    """Return the usage of a command or a group of commands."""
    callback = getattr(entry, "callback", None)
    name = entry.name or (callback.__name__ if callback is not None else "")
    return str(name).replace("_", "-")


def traces(incomplete: str) -> list[str]:
    """Return the completions of a trace: names of those that come with labkit, and files."""
    from labkit.workloads.named_traces import shipped

    return _beginning(incomplete, [*shipped(), *sorted(glob.glob(glob.escape(incomplete) + "*"))])


def clusters(incomplete: str) -> list[str]:
    """Return the completions of a cluster: its names."""
    from labkit.topology import available

    return _beginning(incomplete, [*available()])


def schedulers(incomplete: str) -> list[str]:
    """Return the completions of a list of schedulers: each name after the text before the last comma.

    >>> schedulers("fifo,sr")
    ['fifo,srtf']
    """
    from labkit.schedulers import available

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, available())]


def _beginning(with_: str, names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(with_)]


def examples() -> Iterator[tuple[str, str]]:
    """Yield each example beside the command that it is of."""
    for name, (_, lines) in COMMANDS.items():
        for line in lines:
            yield name, line
