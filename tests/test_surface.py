"""One surface: Python, the command line and `fab` have the same words, and docs/one-surface.md has all of them."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import labkit
from labkit.cli import help as cli_help
from labkit.cli import renamed as cli_renamed
from labkit.cli.app import app
from labkit.experiment import Experiment, attach, compare, deploy, fidelity, simulate
from labkit.notebook import live_deploy
from labkit.results import load
from labkit.testbed.fab import FORMER
from labkit.testbed.run.host_files import fetch
from tests.command import labkit as command

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "one-surface.md").read_text("utf-8")
FOLDERS = {"sweep", "tune", "demo", "train", "new scheduler", "bed up", "bed down", "bed status"}
"""Commands with a folder of one thing: a sweep, a search, a report, a job, a testbed."""
RENAMED = [(command, option) for command, options in cli_renamed.OPTIONS.items() for option in options]


def commands(command: Any, within: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in getattr(command, "commands", {}).items():
        called = f"{within} {name}".strip()
        found |= commands(part, called) if getattr(part, "commands", None) else {called: part}
    return found


COMMANDS = commands(typer.main.get_command(app))


def options(command: Any) -> dict[str, Any]:
    """Return the options of a command by name."""
    return {name: each for each in command.params if each.param_type_name == "option" for name in each.opts}


def fab_tasks() -> dict[str, dict[str, str]]:
    """Return the tasks of `fab`: name -> options, each with the name of its type."""
    tree = ast.parse((ROOT / "testbed" / "fabfile.py").read_text())
    return {
        node.name.replace("_", "-"): {
            each.arg.replace("_", "-"): ast.unparse(each.annotation) for each in node.args.args[1:] if each.annotation
        }
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


FAB = fab_tasks()


def test_every_command_task_and_name_of_the_page_exists_and_the_page_has_all_of_them():
    typed = {" ".join(word for word in each.split() if word[0] != "-") for each in re.findall(r"`labkit (.+?)`", PAGE)}
    tasks = set(re.findall(r"`fab ([a-z-]+)`", PAGE))
    names = set(re.findall(r"`labkit\.(\w+)`", PAGE))
    assert typed - {"run", "clusters"} == set(COMMANDS)  # `labkit clusters` alone lists them
    assert tasks - set(FORMER) == set(FAB)
    assert names - set(labkit.PACKAGES) == set(labkit.__all__)


@cache
def shown_code() -> str:
    """Return the code of all notebooks and of README's and the documents' blocks."""
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    cells = [cell for path in paths for cell in json.loads(path.read_text("utf-8"))["cells"]]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"```python.*?\n(.*?)```", page.read_text(), re.DOTALL)]
    return "\n".join(["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"] + blocks)


@pytest.mark.parametrize("name", labkit.__all__)
def test_what_import_labkit_offers_is_one_thing_under_one_name_described_and_used(name):
    thing = getattr(labkit, name)
    assert thing.__name__ == name
    assert inspect.getdoc(thing)
    assert re.search(rf"\blabkit\.{name}\b", shown_code()), name


def test_import_labkit_offers_the_same_names_when_it_runs_and_to_a_type_checker():
    tree = ast.parse((ROOT / "labkit" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == {*labkit.__all__, *labkit.PACKAGES}
    assert set(labkit._HOMES) == set(labkit.__all__)
    assert set(dir(labkit)) >= typed


def test_plots_offer_the_same_names_when_they_are_drawn_and_to_a_type_checker():
    tree = ast.parse((ROOT / "labkit" / "plots" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(labkit.plots.__all__) == set(labkit.plots._MODULES)
    assert all(getattr(labkit.plots, name).__name__ == name for name in typed)


def test_import_labkit_loads_none_of_it():
    code = "import sys, labkit; print(*sorted(name for name in sys.modules if name.partition('.')[0] in sys.argv[1:]))"
    heavy = ["pandas", "altair", "torch", "numba", "scipy", "fabric", "networkx"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_former_name_of_labkit_tells_the_new_one():
    with pytest.raises(AttributeError, match=r"no attribute 'cluster'; it is labkit.build now"):
        _ = labkit.cluster


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_option_of_a_command_has_the_name_that_it_has_everywhere(name):
    found = options(COMMANDS[name])
    assert not {"--root", "--profiles", "--host"} & set(found)
    assert "--folder" not in found or name in FOLDERS
    assert "--hosts" not in found or (name == "bed up" and found["--hosts"].metavar == "N")
    for option, kind in {"--runs": "FOLDER", "--inventory": "FILE", "--profile": "FILE"}.items():
        assert option not in found or found[option].metavar == kind, option
    assert "--schedulers" not in found or name in {"compare", "replay", "sweep", "deploy"}
    assert "--scheduler" not in found or not found["--scheduler"].multiple


@pytest.mark.parametrize("task", sorted(FAB))
def test_an_option_of_fab_has_the_name_that_it_has_everywhere(task):
    found = FAB[task]
    assert found["inventory"] == "str"
    assert "folder" not in found or task in {"dask-up", "dask-down"}
    assert found.get("hosts", "int") == "int"
    assert found.get("runs", "str") == "str"


@pytest.mark.parametrize("task", sorted(set(FAB) & set(COMMANDS)))
def test_a_task_of_fab_has_only_options_that_the_command_of_that_name_has(task):
    assert {f"--{name}" for name in FAB[task]} - {"--trace"} <= set(options(COMMANDS[task]))


@pytest.mark.parametrize(
    "call", [simulate, compare, deploy, attach, fidelity, load, live_deploy, fetch, Experiment.run]
)
def test_a_function_calls_the_folder_of_runs_as_the_command_line_does(call):
    taken = inspect.signature(call).parameters
    assert "runs" in taken
    assert not {"root", "folder"} & set(taken)


@pytest.mark.parametrize(("name", "option"), RENAMED)
def test_a_former_option_is_gone_and_refused_with_the_new_one(name, option):
    assert option not in options(COMMANDS[name])
    now = cli_renamed.OPTIONS[name][option]
    assert all(new in options(COMMANDS[name]) for new in re.findall(r"--[a-z]+", now))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "demo"], "labkit: 'labkit run' is 'labkit deploy' now. See `labkit --help`.\n"),
        (["deploy", "demo", "--hosts", "x"], "labkit: --hosts is --inventory FILE now. See `labkit deploy --help`.\n"),
        (["runs", "list", "--root=x"], "labkit: --root is --runs FOLDER now. See `labkit runs list --help`.\n"),
    ],
)
def test_a_former_spelling_is_one_line_that_tells_the_new_one(words, told):
    done = command(*words, cwd=ROOT)
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.parametrize("words", [["run"], ["-H", "a,b", "run", "--trace", "demo"]])
def test_a_former_task_of_fab_is_one_line_that_tells_the_new_one(words):
    fab = str(Path(sys.executable).with_name("fab"))
    done = subprocess.run([fab, *words], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "fab: 'fab run' is 'fab deploy' now. See `fab --help deploy`.\n")
    assert set(FORMER.values()) <= set(FAB)
    assert not set(FORMER) & set(FAB)


def test_every_command_has_an_example_and_its_former_ones_are_gone():
    assert not set(cli_renamed.COMMANDS) & set(COMMANDS)
    assert set(cli_renamed.COMMANDS.values()) <= set(cli_help.COMMANDS)
