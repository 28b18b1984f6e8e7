"""The command that submitted a job of Slurm, as SubmitLine has it: its options, and nothing of its script's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Final

OPTIONS: Final = {
    "array": ("array", "ar", "a"), "after": ("dependency", "dep", "d"), "hosts": ("nodelist", "nodel", "w"),
    "exclude": ("exclude", "exclud", "x"), "licenses": ("licenses", "li", "L"), "switches": ("switches", "sw", ""),
}  # fmt: skip
"""Options that are read: the name of each, what of it is enough (getopt_long(3)), and its letter."""

_FLAGS: Final = (
    "bcast", "bell", "compress", "contiguous", "disable-status", "exact", "exclusive", "external", "get-user-env",
    "help", "hold", "ignore-pbs", "immediate", "interactive", "kill-on-bad-exit", "kill-command", "label", "multi-prog",
    "nice", "no-allocate", "no-bell", "no-kill", "no-requeue", "no-shell", "overcommit", "overlap", "oversubscribe",
    "parsable", "preserve-env", "propagate", "pty", "quiet", "quit-on-interrupt", "reboot", "requeue", "resv-ports",
    "share", "spread-job", "stepmgr", "test-only", "unbuffered", "usage", "use-min-nodes", "verbose", "version", "wait",
    "whole", "x11",
)  # fmt: skip
"""Options of sbatch, srun and salloc that do not take the next word as their value; all others do."""
_LETTERS: Final = frozenset("hHIkKlOQsuvVWXZE")
"""Letters of such options."""
_LIKELY: Final = re.compile(r"\s-(?:[a-zA-Z]*[adwxL]|-(?:ar|dep|nodel|exclud|li|sw))")


def options_of(line: str) -> dict[str, str]:
    """Return the values of the options of a line by the keys of `OPTIONS`; the last one of each counts.

    Options end at the first word that is none and no value of one. They end with --wrap where its command is not in
    quotes, since its words cannot be told from them. Of the components of a heterogeneous job, which colons
    divide, the hosts are joined if each names some.

    >>> options_of("sbatch -p a100 -wa01 --depend=afterok:3 train.sh -d imagenet -w 8")
    {'hosts': 'a01', 'after': 'afterok:3'}
    >>> options_of("sbatch --wrap=python main.py -w 1"), options_of("sbatch -w a1 : -w b1 x.sh")
    ({}, {'hosts': 'a1,b1'})
    """
    if not _LIKELY.search(line):
        return {}
    components: list[dict[str, str]] = [{}]
    for key, value in _told(_words(line)):
        if key == ":":
            components.append({})
        else:
            components[-1][key] = value
    hosts = [one.get("hosts", "") for one in components]
    found = {key: value for one in components for key, value in one.items()}
    return found | ({"hosts": ",".join(hosts) if all(hosts) else ""} if "hosts" in found else {})


def with_throttle(line: str | None, n: object) -> str | None:
    """Return a line which says, too, how many tasks of its array run at once, as other fields tell; 0, None: any.

    It says so before its script, whose words are no options.

    >>> with_throttle("sbatch -p a100 x.sh", 2), with_throttle(None, "1"), with_throttle("sbatch x.sh", 0)
    ('sbatch --array=%2 -p a100 x.sh', 'sbatch --array=%1', 'sbatch x.sh')
    """
    if not (n and str(n).isdigit() and int(str(n))):
        return line
    program, _, rest = (line or "sbatch").strip().partition(" ")
    return f"{program} --array=%{n} {rest}".rstrip()


def _words(line: str) -> list[str]:
    """Return the words of a line behind the first one, up to what cannot be told from a command that is wrapped."""
    try:
        words = shlex.split(line) if "'" in line or '"' in line else line.split()
    except ValueError:  # an apostrophe
        words = line.split()
    for i, word in enumerate(words):
        name, equals, command = word.partition("=")
        if name == "--wrap" and " " not in (command if equals else "".join(words[i + 1 : i + 2])):
            return words[1:i]
    return words[1:]


def _told(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the options that are read with their values, and a colon between components."""
    ahead = iter(words)
    for word in ahead:
        if word == ":":
            yield ":", ""
        elif word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            value = value if equals or any(flag.startswith(name) for flag in _FLAGS) else next(ahead, "")
            yield from ((key, value) for key, (long, enough, _) in OPTIONS.items() if _names(name, long, enough))
        elif word.startswith("-") and len(word) > 1 and word != "--":
            flags = word[1:].lstrip("".join(_LETTERS))
            if flags:
                value = flags[1:].removeprefix("=") or next(ahead, "")
                yield from ((key, value) for key, (_, _, letter) in OPTIONS.items() if flags[0] == letter)
        else:
            return


def _names(name: str, option: str, enough: str) -> bool:
    return option.startswith(name) and name.startswith(enough)
