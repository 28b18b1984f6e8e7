"""`labkit watch`: look on at a run from a second place, in a terminal or a browser."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.cli.attach import Runs
from labkit.system.printing import terminal

if TYPE_CHECKING:
    from rich.console import Console

    from labkit.live.follow import FollowedRun


def watch(
    run: Annotated[str, typer.Argument(help="Folder of a run or a queue, or its id under --runs.", metavar="RUN")],
    runs: Runs = Path("runs"),
    once: Annotated[
        bool, typer.Option("--once", help="Print the current state and exit. Default without a terminal.")
    ] = False,
    browser: Annotated[bool, typer.Option("--browser", help="Show it as a page in the browser, until Ctrl-C.")] = False,
    port: Annotated[
        int, typer.Option(help="Port of the page, reachable from this machine only. 0: any free port.")
    ] = 0,
) -> None:
    """Show a run live, or how it ended. Exit code 1 if it stopped early."""
    from labkit.cli.tables import PIPED
    from labkit.live.follow import FollowedRun
    from labkit.live.terminal import follow, shown
    from labkit.results.queue import find_queue
    from labkit.results.store import find

    console = terminal(width=None if sys.stdout.isatty() else PIPED)
    if (queue := find_queue(run, runs=runs)) is not None:
        _watch_queue(queue, console, once=once, browser=browser, port=port)
        return
    seen = FollowedRun(find(run, runs=runs))
    if browser:
        _serve(seen, port=port)
        return
    if not once and sys.stdout.isatty():
        try:
            follow(seen, console)
        except KeyboardInterrupt:
            print(f"no longer watching {seen.info.run}, which continues")
            raise typer.Exit from None
    console.print(shown(seen))
    raise typer.Exit(0 if seen.going or seen.status.state == "done" else 1)


def _watch_queue(folder: Path, console: Console, *, once: bool, browser: bool, port: int) -> None:
    """Show a queue until no process carries it out; exit code 1 if a run of it failed, or some are left then."""
    from labkit.cli.queue import current_run, follow_queue, queue_shown
    from labkit.core.errors import InputError
    from labkit.live.follow import FollowedRun
    from labkit.results.files import writer_of
    from labkit.results.queue import QueueState, RunQueue

    if browser:
        run = current_run(folder)
        if run is None:
            raise InputError(
                f"queue '{folder.name}' carries out no run now; name one of it: labkit watch {folder}/RUN."
            )
        n = len(RunQueue.read(folder).runs)
        print(
            f"queue {folder.name} has {n} run{'s' * (n != 1)}; the page shows {run.name}, the one that is carried out "
            f"now. All: labkit watch {folder}; another one as a page: labkit watch {folder}/RUN --browser"
        )
        _serve(FollowedRun(run), port=port)
        return
    if not once and sys.stdout.isatty():
        try:
            follow_queue(folder, console)
        except KeyboardInterrupt:
            print(f"no longer watching {folder.name}, which continues")
            raise typer.Exit from None
    console.print(queue_shown(folder))
    well = all(each.state == QueueState.DONE for each in RunQueue.read(folder).runs)
    raise typer.Exit(0 if well or writer_of(folder) is not None else 1)


def _serve(run: FollowedRun, *, port: int) -> None:
    """Serve the page of a run, and open it where a browser is at hand."""
    from labkit.core.errors import InputError
    from labkit.live.page import RunPage

    try:
        page = RunPage(run, port=port)
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error.strerror}); take another one, or 0 for any.") from error
    with page:
        print(
            f"{run.info.run} is shown at {page.url} (reachable from this machine only; press Ctrl-C to stop)",
            flush=True,
        )
        with suppress(KeyboardInterrupt), opened(page.url) if sys.stdout.isatty() else nullcontext():
            page.serve()


@contextmanager
def opened(url: str) -> Iterator[None]:
    """Open a page by a file of this user that leads there: arguments of a browser can be read by every user.

    The file is removed at the end.
    """
    with TemporaryDirectory(prefix="labkit-page-") as folder:  # of mode 0700
        file = Path(folder) / "open.html"
        file.touch(mode=0o600)
        file.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">the run</a>\n'
        )
        typer.launch(str(file))
        yield
