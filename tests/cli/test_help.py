"""Where to begin, what the help shows, what a shell completes, and what a command does not load."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import patch

import pytest
import typer
from rich.text import Text

from labkit.cli import help as cli_help
from labkit.cli.app import app
from tests.command import labkit

ROOT = Path(__file__).parents[2]
HEAVY = {
    "altair",
    "jsonschema",
    "torch",
    "scipy.optimize",
    "scipy.sparse",
    "pandas",
    "networkx",
    "distributed",
    "IPython",
}
TYPED = [line.strip() for line in cli_help.BEGIN.splitlines() if line.startswith("  labkit ")]


def ran(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    with patch.dict(os.environ, env):
        return labkit(*words, cwd=ROOT)


def parsed(line: str) -> None:
    """Let typer read a command as it would, down to the last option, without running it."""
    command, words = typer.main.get_command(app), shlex.split(line)[1:]
    context = command.make_context("labkit", list(words))
    while words and (found := getattr(command, "commands", None)) is not None:
        name = words.pop(0)
        command = found[name]
        context = command.make_context(name, list(words), parent=context)


def commands(command: object, within: str = "") -> list[tuple[str, object]]:
    """Return every command below one, with what to type for it."""
    found = []
    for name, part in getattr(command, "commands", {}).items():
        found += [(f"{within} {name}".strip(), part), *commands(part, f"{within} {name}".strip())]
    return found


ALL = commands(typer.main.get_command(app))


def test_labkit_alone_shows_three_commands_to_begin_with():
    done = ran()
    assert (done.returncode, done.stderr) == (0, "")
    assert len(TYPED) == 3
    assert [done.stdout.index(line) for line in TYPED] == sorted(done.stdout.index(line) for line in TYPED)


def test_the_version_is_that_of_the_project():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert ran("--version").stdout == f"labkit {declared}\n"


@pytest.mark.parametrize("line", [*TYPED, *(line for _, line in cli_help.examples())])
def test_an_example_can_be_typed_as_it_stands(line):
    parsed(line)


@pytest.mark.parametrize("name", [name for name, _ in ALL])
def test_every_command_has_an_example_of_itself(name):
    assert name in cli_help.COMMANDS
    panel, lines = cli_help.COMMANDS[name]
    assert all(line.startswith(f"labkit {name}") for line in lines)
    assert bool(panel) == (" " not in name)


def test_the_table_of_commands_has_no_other_ones():
    assert set(cli_help.COMMANDS) == {name for name, _ in ALL}


def test_the_help_groups_commands_and_shows_examples():
    shown = ran("--help").stdout
    panels = list(dict.fromkeys(panel for panel, _ in cli_help.COMMANDS.values() if panel))
    assert len(panels) == 6
    places = [shown.index(f"─ {panel} ─") for panel in panels]
    assert places == sorted(places)
    assert "labkit traces info demo" in ran("traces", "info", "--help").stdout


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_options_of_a_command_differ_and_its_help_is_shown_whole(name, command):
    options = [option for param in command.params for option in (*param.opts, *param.secondary_opts)]
    assert sorted(options) == sorted(set(options))
    told = [command.help, *(getattr(param, "help", None) for param in command.params)]
    texts = [text.partition(" [default: ")[0] for text in told if text]  # typer shows a default as it is
    assert [text for text in texts if Text.from_markup(text).plain != text] == []  # "[x]" would be a style


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("labkit comp", {"compare"}),
        ("labkit traces ", {"info", "fetch", "list"}),
        ("labkit compare de", {"demo"}),
        ("labkit compare demo --cluster gavel-3", {"gavel-36x3"}),
        ("labkit compare demo --schedulers fifo,sr", {"fifo,srtf"}),
        ("labkit sweep --see", {"--seeds"}),
        ("labkit deploy --inv", {"--inventory"}),
        ("labkit runs list --ru", {"--runs"}),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_is_told_how_a_line_may_go_on(shell, typed, expected):
    words = typed.split(" ")
    done = ran(
        _LABKIT_COMPLETE=f"complete_{shell}", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1),
        _TYPER_COMPLETE_ARGS=typed,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = re.findall(r'^(?:.*\()?\s*"([^":]+)"', done.stdout, re.MULTILINE) if shell == "zsh" else done.stdout.split()
    assert expected <= set(told), done.stdout


@pytest.mark.parametrize(("shell", "registers"), [("bash", "complete -o default"), ("zsh", "#compdef labkit")])
def test_a_shell_gets_a_script_that_asks_labkit_itself(shell, registers):
    script = ran(_LABKIT_COMPLETE=f"source_{shell}").stdout
    assert registers in script
    assert f"_LABKIT_COMPLETE=complete_{shell}" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_installs_itself_into_the_shell_that_asks(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "labkit").write_text(
        f"#!{sys.executable}\nimport sys\nfrom labkit.cli.app import main\nsys.argv[0] = 'labkit'\nmain()\n"
    )
    (tmp_path / "bin" / "labkit").chmod(0o755)
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    env["PYTHONPATH"] = str(ROOT)
    line = [shell, "-c", "labkit --install-completion; echo $?"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr
    if shell == "bash":  # as an interactive one does on <Tab>
        line = "source ~/.bashrc; COMP_WORDS=(labkit comp); COMP_CWORD=1; _labkit_completion labkit; echo $COMPREPLY"
        done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "compare"
    else:
        assert "compdef _labkit_completion labkit" in (tmp_path / ".zfunc" / "_labkit").read_text()


def loaded(*words: str) -> set[str]:
    """Return the modules that a command has loaded when it ends."""
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['labkit', *{words!r}]\n"
        "try: runpy.run_module('labkit', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_the_help_loads_nothing_heavy():
    assert loaded("--help") & HEAVY == set()


def test_a_comparison_loads_only_what_it_uses():
    assert loaded("compare", "demo", "--cluster", "demo", "--schedulers", "fifo,srtf") & HEAVY <= {"pandas"}


EXTRA = [
    "anywidget", "cryptography", "distributed", "fabric", "gymnasium", "IPython", "ipywidgets", "optuna", "paramiko",
    "pyarrow", "sklearn", "tensorboardX", "torch",
]  # fmt: skip
"""What only extras bring."""


def without_extra(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, runpy\n"
        f"for name in {EXTRA!r}: sys.modules[name] = None\n"
        f"sys.argv = ['labkit', *{words!r}]\n"
        "runpy.run_module('labkit', run_name='__main__')"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, ""),
        (["compare", "demo", "--cluster", "demo", "--schedulers", "fifo,srtf"], 0, ""),
        (["traces", "list"], 0, ""),
        (["compare", "demo", "--cluster", "demo", "--schedulers", "fifo", "--report", "r.html"], 0, ""),
        (
            ["bed", "up", "--hosts", "3"],
            2,
            "labkit: the package cryptography is missing; pip install 'cluster-labkit[te",
        ),
        (["train", "cnn"], 2, "labkit: the package torch is missing; pip install 'cluster-labkit[train]'"),
    ],
)
def test_without_extras_it_simulates_and_reports_and_says_what_else_needs(words, code, said, tmp_path):
    done = without_extra(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == bool(said)
