"""A host's `python` that lies: `liar.py LIE WORD...` answers whatever it is asked as LIE says, one function for each.

The words are those that labkit hands to a host's Python: -c, a program, and what that takes.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import time
from pathlib import Path

from labkit.testbed.onhost.shared import BEGIN, FramedMessage, send

RUN = "run-1-0123abcd"


def asked_for_runs() -> bool:
    """Return whether the question is only which runs there are."""
    return len(sys.argv) == 5


def runs(*names: str) -> None:
    send({"runs": dict.fromkeys(names, 9e12)})


def folder(path: str) -> None:
    send({"kind": "folder", "path": path})


def file(path: str, content: bytes = b"pwned", size: int | None = None) -> None:
    send({"kind": "file", "path": path, "size": len(content) if size is None else size})
    raw(content)


def raw(content: bytes) -> None:
    message = FramedMessage()
    message.write(content)
    message.end()


def end(n: int = 1) -> None:
    send({"kind": "end", "entries": n})


def out(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# --- names of runs


def absolute_run() -> None:
    runs(os.environ["LIAR_OUTSIDE"] + "/run")


def run_above() -> None:
    runs("../../../../" + os.environ["LIAR_OUTSIDE"].lstrip("/"))


def long_run() -> None:
    runs("r" * 5000)


def control_run() -> None:
    runs("run\x1b[2J\n")


def no_runs_but_a_list() -> None:
    send({"runs": ["a", "b"]})


def endless_time() -> None:
    out(BEGIN + b'\036D 28\n{"runs": {"run-1": 1e99999}}')


def deep_json() -> None:
    raw(b'{"runs": ' * 100_000)


def huge_number() -> None:
    raw(b'{"runs": {"run-1": ' + b"9" * 1_000_000 + b"}}")


def endless_noise() -> None:
    while True:
        out(b"y\n" * 65536)


def endless_answer() -> None:
    out(BEGIN)
    while True:
        out(b"\036D 262144\n" + b" " * 262144)


def endless_nothing() -> None:
    out(BEGIN)
    while True:
        out(b"\036D 0\n" * 10_000)


def old_answer() -> None:
    out(b'{"runs": {"' + RUN.encode() + b'": 9e12}}\n')


# --- entries


def entry_above() -> None:
    file("../../../../outside/x")


def entry_absolute() -> None:
    file(os.environ["LIAR_OUTSIDE"] + "/x")


def entry_winding() -> None:
    folder("a")
    file("a/../../../../../outside/x")


def entry_with_empty_name() -> None:
    folder("a")
    file("a//x")


def entry_with_control_letters() -> None:
    file("a\nb\x1b[2J")


def entry_with_half_a_letter() -> None:
    file("\ud800")


def entry_too_deep() -> None:
    for depth in range(1, 40):
        folder("/".join("d" * depth))


def entry_too_long() -> None:
    file("x" * 300)


def entry_without_folder() -> None:
    file("a/b/c")


def a_link() -> None:
    send({"kind": "link", "path": "a", "to": os.environ["LIAR_OUTSIDE"]})
    file("a/x")


def a_device() -> None:
    send({"kind": "device", "path": "null", "major": 1, "minor": 3})


def twice() -> None:
    file("a")
    file("a")


def file_as_folder() -> None:
    file("a")
    file("a/b")


def folder_as_file() -> None:
    folder("a")
    file("a")


def too_much() -> None:
    file("a", size=10**15)


def more_than_said() -> None:
    file("a", b"x" * 1000, size=10)


def less_than_said() -> None:
    file("a", b"x" * 10, size=1000)


def wrong_digest() -> None:
    send({"kind": "file", "path": "a", "size": 5})
    out(BEGIN + b"\036D 5\npwned\036E 5 " + b"0" * 64 + b"\n")


def cut_off() -> None:
    send({"kind": "file", "path": "a", "size": 5000})
    out(BEGIN + b"\036D 5000\n" + b"x" * 100)


def entries_missing() -> None:
    file("a")
    end(5)


def oversized_frame() -> None:
    send({"kind": "file", "path": "a", "size": 5_000_000})
    out(BEGIN + b"\036D 5000000\n" + b"x" * 5_000_000)


def crumbs() -> None:
    send({"kind": "file", "path": "a", "size": 5_000_000})
    out(BEGIN + b"\036D 1\nx" * 5_000_000)


def negative_size() -> None:
    file("a", size=-5)


def endless_folders() -> None:
    for n in range(10**9):
        folder(f"d{n}")


def evil_tar() -> None:
    """Links whose long real paths overflow the filter of the standard library, then a file behind them."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        place, step = "", "d" * 247
        for letter in "abcdefghijklmnop":
            add(tar, os.path.join(place, step), tarfile.DIRTYPE)
            add(tar, os.path.join(place, letter), tarfile.SYMTYPE, step)
            place = os.path.join(place, step)
        link = os.path.join("/".join("abcdefghijklmnop"), "l" * 254)
        add(tar, link, tarfile.SYMTYPE, "../" * 16)
        add(tar, "escape", tarfile.SYMTYPE, link + "/../../../../outside")
        add(tar, "hard", tarfile.LNKTYPE, "escape/x")
        member = tarfile.TarInfo("hard")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"pwned"))
    out(content.getvalue())


def add(tar: tarfile.TarFile, name: str, kind: bytes, to: str = "") -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    tar.addfile(member)


# --- checkpoints


def no_checkpoint() -> None:
    folder("job/checkpoints")
    end()


def damaged_checkpoint() -> None:
    folder("job/checkpoints")
    folder("job/checkpoints/step-000100")
    file("job/checkpoints/step-000100/manifest.json", b'{"files": {}}')
    file("job/checkpoints/step-000100/queue.json", b"{}")
    end(4)


def wrong_checkpoint() -> None:
    folder("job/checkpoints")
    send({"kind": "file", "path": "job/checkpoints/a", "size": 5})
    out(BEGIN + b"\036D 5\npwned\036E 5 " + b"0" * 64 + b"\n")


def checkpoint_outside() -> None:
    folder("job/other")
    end()


def silent() -> None:
    time.sleep(600)


NAMES = ("absolute_run", "run_above", "long_run", "control_run")
FORM, PATH, OTHER = "not the form that was asked for", "is no path below a folder", "another SHA-256 than announced"
ANSWERS = {
    "no_runs_but_a_list": FORM, "endless_time": "was cut off", "deep_json": "recursion limit", "huge_number": FORM,
    "endless_noise": "more than 64 MiB", "endless_answer": "more than 64 MiB", "endless_nothing": "more than 64 MiB",
    "old_answer": "without an answer",
}  # fmt: skip
"""What is told of each."""
ENTRIES = {
    "entry_above": PATH, "entry_absolute": PATH, "entry_winding": PATH, "entry_with_empty_name": PATH,
    "entry_with_control_letters": PATH, "entry_with_half_a_letter": FORM, "entry_too_deep": PATH,
    "entry_too_long": PATH, "entry_without_folder": "before its folder", "a_link": FORM, "a_device": FORM,
    "twice": "came twice", "file_as_folder": "before its folder", "folder_as_file": "came twice",
    "too_much": "more than 16 GB", "more_than_said": "more than 10 bytes", "less_than_said": "of the 1000",
    "wrong_digest": OTHER, "cut_off": "cut off", "entries_missing": "of 5", "oversized_frame": "more than 5000000",
    "crumbs": "after the last one", "negative_size": FORM, "endless_folders": "more than 100 folders",
    "evil_tar": "more than 64 KiB",
}  # fmt: skip
CHECKPOINTS = {
    "no_checkpoint": "no complete checkpoint", "damaged_checkpoint": "no complete checkpoint",
    "checkpoint_outside": "outside of what was asked for", "entry_above": PATH, "wrong_digest": "outside of what",
    "cut_off": "outside of what", "evil_tar": "more than 64 KiB", "a_link": FORM, "old_answer": "without an answer",
    "wrong_checkpoint": OTHER,
}  # fmt: skip


def write(path: Path, lie: str, outside: Path) -> Path:
    """Write a program that tells a lie, whatever it is asked."""
    path.write_text(
        f"#!/bin/sh\nPYTHONPATH='{Path(__file__).parents[2]}' LIAR_OUTSIDE='{outside}' "
        f"exec '{sys.executable}' '{__file__}' {lie} \"$@\"\n"
    )
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    if asked_for_runs() and sys.argv[1] in ENTRIES:
        runs(RUN)
    else:
        globals()[sys.argv[1]]()
        if sys.argv[1] in ENTRIES:
            end()
