"""The command line: what `labkit` alone says, and every command, in one application."""

from __future__ import annotations

import atexit
import gc
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from labkit.cli import help as cli_help
from labkit.cli import new as cli_new
from labkit.cli import renamed as cli_renamed
from labkit.cli import runs as cli_runs
from labkit.cli.attach import attach
from labkit.cli.compare import compare
from labkit.cli.data import clusters, schedulers, traces, traces_import, weights
from labkit.cli.demo import demo
from labkit.cli.deploy import deploy
from labkit.cli.doctor import doctor
from labkit.cli.fidelity import fidelity
from labkit.cli.figure import figure
from labkit.cli.paper import paper
from labkit.cli.profile import profile
from labkit.cli.replay import replay
from labkit.cli.simulate import simulate
from labkit.cli.sweep import sweep
from labkit.cli.train import train
from labkit.cli.train_policy import train_policy
from labkit.cli.tune import tune
from labkit.cli.watch import watch
from labkit.core.errors import LabkitError
from labkit.system import early, release
from labkit.system.printing import guard

app = typer.Typer(pretty_exceptions_enable=False)
app.add_typer(traces, name="traces")
app.add_typer(clusters, name="clusters")
app.add_typer(weights, name="weights")
traces.command("import")(traces_import)
app.command()(schedulers)
app.command()(train)
app.command()(sweep)
app.command()(tune)
app.command()(figure)
app.command()(paper)
app.command()(cli_runs.report)
app.command()(train_policy)
app.command()(deploy)
app.command()(attach)
app.command()(watch)
app.command()(fidelity)
app.command()(profile)
app.command()(simulate)
app.command()(replay)
try:
    from labkit.cli.bed import app as bed_app
except ModuleNotFoundError as error:  # installed without the extra `lab`
    cli_help.add_refused(app, "bed", missing=str(error.name))
else:
    app.add_typer(bed_app, name="bed")
for part, called in ((cli_new.app, "new"), (cli_runs.app, "runs")):
    app.add_typer(part, name=called)


@app.callback(invoke_without_command=True)
def begin(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show which labkit this is.", is_eager=True)] = False,
) -> None:
    """A laboratory for deep-learning cluster scheduling. `labkit` alone shows where to begin."""  # noqa: D401 - help
    if version:
        print(f"labkit {release.version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(cli_help.BEGIN.format(version=release.version()))


app.command()(demo)
app.command()(compare)
app.command()(doctor)
cli_help.arrange(app)


def main() -> None:
    """Run the command line; whatever is wrong with what was typed is told in one line, with exit code 2."""
    guard()
    gc.freeze()  # looking through what stays is 0.2 CPU s of a comparison
    gc.set_threshold(1_000_000, 20, 20)  # half of what kernels leave behind in a first comparison, which is 1.3 CPU s
    atexit.register(gc.freeze)  # else the interpreter looks through all that is loaded before it ends: 0.3 CPU s
    try:
        _main()
    except KeyboardInterrupt:  # pressed again, while the first one was being handled
        early.arm()
        early.tell()
        sys.exit(early.STOPPED)


def _main() -> NoReturn:
    warnings.showwarning = _warn
    early.hand_over()
    if odd := next((word for word in sys.argv if word.encode(errors="ignore").decode() != word), None):
        _refuse(f"{odd!r} is not UTF-8; give the file another name.")
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]  # click's ClickException, wherever typer keeps it
    try:
        code = app(prog_name="labkit", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        code = early.STOPPED
    except BrokenPipeError:  # e.g. `| head`
        sys.stderr.close()
        sys.exit(141)
    except (LabkitError, OSError, ModuleNotFoundError) as error:
        _refuse_error(error)
    except usage_error as error:
        _refuse_usage(error)
    early.arm()
    if code == early.STOPPED:  # typer may have caught Ctrl-C itself
        early.tell()
    sys.exit(code)


def _refuse_error(error: Exception) -> NoReturn:
    """Report in one line what cannot be done, and what to do about it; a fault of labkit itself is raised again."""
    if isinstance(error, LabkitError):
        _refuse(str(error))
    if isinstance(error, OSError):
        _refuse(f"{error.filename or 'a file'}: {error.strerror or error}; check the path and its permissions.")
    if not isinstance(error, ModuleNotFoundError) or str(error.name).startswith("labkit"):
        raise error
    _refuse(str(cli_help.lacking(str(error.name))))


def _refuse_usage(error: Exception) -> NoReturn:
    """Report in one line what was typed wrong, and where to read what can be typed."""
    said = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    if not said:  # nothing was asked, and the help was shown
        sys.exit(2)
    context = getattr(error, "ctx", None)
    asked = context.command_path if context else "labkit"
    option = str(getattr(error, "option_name", ""))
    said = cli_renamed.option_now(asked, option) or cli_renamed.command_now(said) or said
    _refuse(f"{said}{'' if said.endswith('?') else '.'} See `{asked} --help`.")


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning in one line, without its place in the code."""
    print(f"labkit: note: {' '.join(str(message).split())}", file=sys.stderr)


def _refuse(message: str) -> NoReturn:
    print(f"labkit: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
