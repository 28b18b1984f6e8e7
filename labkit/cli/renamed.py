"""Commands and options that have another name now: what was typed is refused in a line that tells the new name."""

from __future__ import annotations

import re
from typing import Final

COMMANDS: Final = {"run": "deploy"}
"""Former name of a command, and its name now."""

RUNS: Final = "--runs FOLDER"
INVENTORY: Final = "--inventory FILE"
PROFILE: Final = "--profile FILE"
OPTIONS: Final[dict[str, dict[str, str]]] = {
    "deploy": {"--hosts": INVENTORY, "--folder": RUNS},
    "attach": {"--folder": RUNS, "--throughputs": PROFILE},
    "watch": {"--folder": RUNS},
    "simulate": {"--folder": RUNS},
    "profile": {"--hosts": INVENTORY},
    "fidelity": {"--root": RUNS},
    "report": {"--root": RUNS},
    "figure": {"--root": RUNS},
    "runs list": {"--root": RUNS},
    "runs compare": {"--root": RUNS},
    "runs remove": {"--root": RUNS},
    "sweep": {"--scheduler": "--schedulers A,B,..."},
    "doctor": {"--hosts": f"--testbed, or {INVENTORY}"},
    "train": {"--hosts": "--addresses A,B,..."},
}
"""For each command: its former options, and how they are written now."""


def command_now(message: str) -> str | None:
    """Return the present name of a command, from the error that it is unknown; None: it never was one.

    >>> command_now("No such command 'run'.")
    "'labkit run' is 'labkit deploy' now"
    """
    found = re.match(r"No such command '([\w-]+)'", message)
    now = COMMANDS.get(found[1]) if found else None
    return None if found is None or now is None else f"'labkit {found[1]}' is 'labkit {now}' now"


def option_now(command: str, option: str) -> str | None:
    """Return how an option is written now, from the command and what was typed; None: it never was one.

    >>> option_now("labkit deploy", "--hosts")
    '--hosts is --inventory FILE now'
    """
    now = OPTIONS.get(command.removeprefix("labkit "), {}).get(option)
    return None if now is None else f"{option} is {now} now"
