"""Tasks of `fab` from functions: called once for all hosts, with -H as a filter, and errors in one line.

Fabric runs a task once for each host of -H, one after the other, and without -H it has no host at all. These tasks read
the inventory, work on all its hosts at once, and take -H as names of it. `fabric.yaml` beside a fabfile names `Once`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import fabric
from invoke.context import Context
from invoke.exceptions import Exit

from labkit.core.errors import LabkitError, unknown
from labkit.core.host_names import has_range
from labkit.system import early
from labkit.system.printing import printable
from labkit.system.release import how_to_get
from labkit.testbed.inventory import Inventory
from labkit.testbed.ssh.fleet import Fleet

OUTSIDE_BRACKETS = re.compile(r",(?![^\[\]]*\])")
FAILED, WRONG, STOPPED, BROKEN_PIPE = 1, 2, early.STOPPED, 141
"""Exit codes: a host failed; an input or a file is wrong; Ctrl-C; the reader of stdout is gone."""


FORMER: Final = {"run": "deploy"}
"""Former name of a task, and its name now."""


class Once(fabric.Executor):  # type: ignore[misc]
    """Runs each task once, and passes -H on as names to filter by."""

    def expand_calls(self, calls: Sequence[Any], apply_hosts: bool = True) -> list[Any]:  # noqa: ARG002
        """Return the calls as they are, with the names of -H in the configuration."""
        self.config["only"] = names_of(self.core[0].args.hosts.value)
        expanded: list[Any] = super().expand_calls(calls, apply_hosts=False)
        return expanded


def names_of(text: str | None) -> list[str]:
    """Return the names of a list with commas.

    >>> names_of("gpu-a, gpu[1,3],"), names_of(None)
    (['gpu-a', 'gpu[1,3]'], [])
    """
    return [name.strip() for name in OUTSIDE_BRACKETS.split(text or "") if name.strip()]


def task(body: Callable[..., bool | None] | None = None, *, help: Mapping[str, str] | None = None) -> Any:
    """Make a task from a function that returns whether all hosts succeeded; None means True.

    It ends with exit code 1 where something failed, with 2 and one line where something given is wrong, and with 130
    after Ctrl-C. `body`: takes the context, then the task's options. `help`: what each option is for.
    """
    if body is None:
        return lambda body: task(body, help=help)

    @wraps(body)
    def run(context: Context, *args: Any, **options: Any) -> None:
        early.hand_over()
        try:
            well = body(context, *args, **options)
        except (KeyboardInterrupt, LabkitError, ImportError, OSError) as error:
            raise _exit_for(error) from None
        finally:
            early.arm()
        if well is False:
            raise Exit(code=FAILED)

    return fabric.task(auto_shortflags=False, help=dict(help or {}))(run)


def _exit_for(error: BaseException) -> Exit:
    """Return the exception that ends `fab`: a line for people, and an exit code."""
    if isinstance(error, KeyboardInterrupt):
        return Exit("fab: stopped", code=STOPPED)
    if isinstance(error, BrokenPipeError):  # e.g. `| head`
        sys.stderr.close()
        return Exit(code=BROKEN_PIPE)
    if isinstance(error, ImportError):
        return Exit(f"fab: {error.name or error} is missing; {how_to_get(error.name or '')}.", code=WRONG)
    if isinstance(error, OSError) and not isinstance(error, LabkitError):
        where = f"{error.filename or 'a file'}: {error.strerror or error}"
        return Exit(f"fab: {where}; check the path and its permissions.", code=WRONG)
    return Exit(f"fab: {printable(' '.join(str(error).split()))}", code=WRONG)


def refuse_former(words: Sequence[str]) -> None:
    """Refuse the former name of a task, in the line that has its name now: Fabric would only say that it is none.

    Parameters
    ----------
    words : sequence of str
        The command line, with the name of the program.

    >>> refuse_former(["fab", "-H", "a", "deploy", "--trace", "run"])
    >>> refuse_former(["fab", "-H", "a", "run"])
    Traceback (most recent call last):
    ...
    invoke.exceptions.Exit: fab: 'fab run' is 'fab deploy' now. See `fab --help deploy`.
    """
    if not words or Path(words[0]).name != "fab":
        return
    names = [word for before, word in pairwise(words) if before not in ("-H", "--hosts")]
    first = next((word for word in names if not word.startswith("-")), "")
    if first in FORMER:
        now = FORMER[first]
        raise Exit(f"fab: 'fab {first}' is 'fab {now}' now. See `fab --help {now}`.", code=WRONG)


def only(context: Context) -> list[str]:
    """Return the names of -H that a task was called with; empty: all hosts."""
    if isinstance(context, fabric.Connection):  # no fabric.yaml was found: Fabric's own way, one host at a time
        return [str(context.original_host)]
    return list(context.config.get("only", []))


def inventory_of(context: Context, path: str = "", hosts: str = "") -> Inventory:
    """Return the inventory of a task, without the hosts that -H leaves out; those are reported on stderr.

    `path`: of the file; empty: the usual one. `hosts`: names with commas, instead of -H.
    """
    inventory = chosen(Inventory.read(path or None), names_of(hosts) or only(context))
    print(f"{inventory.path}: {', '.join(inventory.names)}", file=sys.stderr)
    return inventory


def chosen(inventory: Inventory, names: Sequence[str]) -> Inventory:
    """Return the hosts of an inventory with one of some names or addresses; all hosts if none is given.

    Raise InputError if no host has that name or address. `names`: hosts by name or address, groups of the inventory,
    and ranges: gpu[01-04].
    """
    if not names:
        return inventory
    at = {machine.address: machine.name for machine in reversed(inventory.machines)}
    known = {*inventory.names, *inventory.groups, *at}
    for name in names:
        if name not in known and not has_range(name):
            raise unknown("host", name, known)
    plain = [at.get(name, name) if name not in (*inventory.names, *inventory.groups) else name for name in names]
    return inventory.only(plain)


@contextmanager
def fleet(context: Context, path: str = "", hosts: str = "") -> Iterator[Fleet]:
    """Return connections to the hosts of a task; they are closed after it."""
    with Fleet(inventory_of(context, path, hosts)) as connections:
        yield connections
