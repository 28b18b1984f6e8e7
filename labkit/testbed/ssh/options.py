"""How to log in to a host: the options of an inventory and of ~/.ssh/config.

paramiko ignores `Include` in that file; here it is replaced by the lines of the files.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from annotated_types import Ge, Le, Len

from labkit.core.errors import InputError
from labkit.system.release import how_to_get
from labkit.topology.inventory import fault_in_words

if TYPE_CHECKING:
    import paramiko
    from pydantic import ConfigDict

MAX_DEPTH = 16
"""As OpenSSH."""
LINE = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*")
BLOCKS = ("host", "match")
EVERY = "Host *"
Text = Annotated[str, Len(1)]
PLAIN = re.compile(r"(?!-)[^\s\x00-\x1f\x7f'\"`$\\;&|<>()]+")
"""Addresses and users: no blanks, quotes, characters of a shell, or leading dash."""
ONLY_FOR_ALL = ("known_hosts", "config")
NONE = "none"
"""As in `ssh -F none`: no configuration file of the user."""


def expanded(path: Path, *, depth: int = 0) -> str:
    """Return a configuration with included files in place.

    After a file with blocks of its own, the block with the Include continues. Raise InputError if files include each
    other without end, or one with `Host` or `Match` is included inside of a block, where both would have to hold;
    OSError, UnicodeDecodeError if a file cannot be read.
    """
    if depth > MAX_DEPTH:
        raise InputError(f"{path} is included more than {MAX_DEPTH} files deep; does it include itself?")
    lines, block = [], EVERY
    for line in path.read_text("utf-8").splitlines():
        found = LINE.fullmatch(line)
        word = found[1].lower() if found else ""
        if word in BLOCKS:
            block = line
        if found is None or word != "include":
            lines.append(line)
            continue
        brought = [expanded(each, depth=depth + 1) for each in _meant(found[2])]
        if any(map(_has_blocks, brought)) and block != EVERY:
            raise InputError(
                f"{path}: 'Include {found[2]}' stands below '{block.strip()}' and brings Host or Match lines; labkit "
                'reads such a file only above the first Host. Move it there, or set config = "none" in [ssh].'
            )
        lines += [*brought, *([block] if any(map(_has_blocks, brought)) else [])]
    return "\n".join([*lines, ""])


def _meant(words: str) -> list[Path]:
    """Return the files that an Include names, found as ssh does; missing files are skipped."""
    found = []
    for word in shlex.split(words, comments=True):
        path = os.path.expandvars(os.path.expanduser(word))
        found += sorted(glob.glob(path if os.path.isabs(path) else os.path.join(os.path.expanduser("~/.ssh"), path)))
    return [Path(path) for path in found if os.path.isfile(path)]


def _has_blocks(text: str) -> bool:
    return any((found := LINE.fullmatch(line)) and found[1].lower() in BLOCKS for line in text.splitlines())


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an `ssh = {...}` table of a host, or of the table [ssh] for all hosts; None: not given."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    address: Text | None = None
    port: Annotated[int, Ge(1), Le(65535)] | None = None
    user: Text | None = None
    key: Text | None = None
    python: Text | None = None
    folder: Text | None = None
    proxy_command: Text | None = None
    """`address`, `port`, `user`, `key`, `python`, `folder` and `proxy_command`: see
    `labkit.testbed.inventory.Machine`."""
    proxy_jump: Text | None = None
    """"user@host:port" of a proxy, or several with commas; also names of the inventory and of ~/.ssh/config."""
    local: bool | None = None
    """Whether it is this machine, reached without SSH."""
    known_hosts: Text = "~/.ssh/known_hosts"
    """Only for all: the file of trusted host keys."""
    config: Text = "~/.ssh/config"
    """Only for all: the file to read instead of ~/.ssh/config; "none": no file."""

    def over(self, other: Options) -> Options:
        """Return these options, completed by those of another table."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.proxy_command or self.proxy_jump:  # the more specific way counts, as in ssh
            mine |= {key: mine[key] or "" for key in ("proxy_command", "proxy_jump")}
        return Options(**{key: getattr(other, key) if value is None else value for key, value in mine.items()})


def checked_options(table: Mapping[str, Any], *, where: str, here: Path) -> tuple[Options, list[str]]:
    """Return the options of a host's `ssh` table, and its faults; paths are relative to `here`."""
    misplaced = [
        f"{where}: {key} is an option of all hosts; set it in the table [ssh]" for key in ONLY_FOR_ALL if key in table
    ]
    own = {key: value for key, value in table.items() if key not in ONLY_FOR_ALL}
    options, faults = _checked(own, where=where, here=here)
    return options, [*misplaced, *faults]


def checked_defaults(table: Mapping[str, Any], *, here: Path) -> tuple[Options, list[str]]:
    """Return the options of the table [ssh], and its faults; paths are relative to `here`."""
    if "address" in table:
        table = {key: value for key, value in table.items() if key != "address"}
        options, faults = _checked(table, where="[ssh]", here=here)
        return options, [*faults, "[ssh]: address cannot be the same for all hosts; set it in each host's ssh table"]
    return _checked(table, where="[ssh]", here=here)


def _checked(table: Mapping[str, Any], *, where: str, here: Path) -> tuple[Options, list[str]]:
    from pydantic import TypeAdapter, ValidationError

    known = [field.name for field in fields(Options)]
    try:
        options = TypeAdapter(Options).validate_python(dict(table))
    except ValidationError as error:
        return Options(), [fault_in_words(where, fault["loc"], dict(fault), known=known) for fault in error.errors()]
    return _resolved(options, here=here), _odd(options, where=where)


def _odd(options: Options, *, where: str) -> list[str]:
    """Return values that are no address or user, or that a shell could interpret."""
    plain = [(key, getattr(options, key)) for key in ("address", "user")]
    faults = [
        f"{where}: {key} is {value!r}; expected no blanks, quotes or shell characters, and no leading dash"
        for key, value in plain
        if value is not None and not PLAIN.fullmatch(value)
    ]
    written = [
        (key, getattr(options, key)) for key in ("key", "python", "folder", "proxy_command", "known_hosts", "config")
    ]
    faults += [
        f"{where}: {key} is {value!r}; expected no control characters"
        for key, value in written
        if value and re.search(r"[\x00-\x1f\x7f]", value)
    ]
    if options.folder and not options.folder.startswith(("/", "~/")):
        faults.append(f"{where}: folder is {options.folder!r}; expected an absolute path, or one that begins with ~/")
    if options.proxy_command and options.proxy_jump:
        faults.append(f"{where}: both proxy_command and proxy_jump; expected one of them")
    return faults


def _resolved(options: Options, *, here: Path) -> Options:
    """Return options with absolute paths on this machine."""

    def found(path: str) -> str:
        return str(here / Path(path).expanduser())

    changed = {key: found(path) for key in ("key", "known_hosts") if (path := getattr(options, key))}
    if options.config != NONE:
        changed["config"] = found(options.config)
    return Options(**({field.name: getattr(options, field.name) for field in fields(options)} | changed))


class SshConfig:
    """The user's own ~/.ssh/config."""

    def __init__(self, config: paramiko.SSHConfig | None = None) -> None:
        self._config = config

    @classmethod
    def read(cls, path: str) -> tuple[Self, list[str]]:
        """Return a configuration file, and what is wrong with it; a missing file is empty."""
        file = Path(path).expanduser()
        if path == NONE or not file.exists():
            return cls(), []
        try:
            import paramiko
        except ImportError:
            raise InputError(f"{file} can only be read with paramiko: {how_to_get('paramiko')}.") from None
        try:
            return cls(paramiko.SSHConfig.from_text(expanded(file))), []
        except InputError as error:
            return cls(), [str(error).rstrip(".")]
        except (paramiko.ConfigParseError, OSError, UnicodeDecodeError, ValueError) as error:
            return cls(), [f"{file}: {error}"]

    def options(self, name: str) -> Options:
        """Return its options for a host."""
        if self._config is None:
            return Options()
        found = self._config.lookup(name)
        keys = [Path(key).expanduser() for key in found.get("identityfile", [])]
        there = [str(key) for key in keys if key.exists()] or [str(key) for key in keys]
        return Options(
            address=found.get("hostname"),
            port=int(found["port"]) if found.get("port", "").isdigit() else None,
            user=found.get("user"),
            key=there[0] if there else None,
            proxy_command=found.get("proxycommand"),
            proxy_jump=found.get("proxyjump"),
        )
