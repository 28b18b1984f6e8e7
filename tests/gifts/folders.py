"""Malicious folders, each made from an honest run: how a stranger would have a command run code, or write elsewhere."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.parquet import decode_frame, encode_frame
from labkit.results.files import NAME_KEY

CANARY: Final = "PWN"
"""A file in the folder that a command is run in, which no command may make."""
PAYLOAD: Final = f"open({CANARY!r}, 'a').write('ran\\n')\n"
SCHEDULER: Final = """
class S:
    def __init__(self, **_): pass
    def schedule(self, snapshot): raise SystemExit
class P:
    def place(self, snapshot, gangs): raise SystemExit
"""
GIFT: Final = "runs/gift"
HOSTS: Final = """
[[hosts]]
name = "h0"
gpus = 64
cpus = 256
memory_gb = 1024
ssh = { address = "127.0.0.1", port = 1, proxy_command = "sh -c 'touch PWN; exit 1'" }
"""
PROXY: Final = "Host *\n  ProxyCommand sh -c 'touch PWN; exit 1'\n"
Gift = Callable[[Path], None]
GIFTS: Final[dict[str, Gift]] = {}


def gift(make: Gift) -> Gift:
    GIFTS[make.__name__] = make
    return make


def change(path: Path, **columns: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **columns}))


def names(folder: Path, scheduler: str, *, code: str = PAYLOAD + SCHEDULER) -> None:
    """Let a run name a scheduler, and put code beside it."""
    (folder / "evil.py").write_text(code)
    config = json.loads((folder / "run.json").read_text())["config"]
    change(folder / "run.json", scheduler=scheduler, config={**config, "asked": scheduler})


def queue(folder: Path, *, scheduler: str = "fifo", **columns: Any) -> None:
    """Make it a queue with one run that is left."""
    shutil.copy(folder / "jobs.parquet", folder / "trace.parquet")
    begun = {"version": 1, "trace": "small", "inventory": str(Path("hosts.toml").absolute()), "where": GIFT}
    runs = [{"run": "a-1", "scheduler": scheduler, "repeat": 1}]
    (folder / "queue.json").write_text(json.dumps({**begun, "runs": runs, **columns}))
    (folder / "run.json").unlink()


@gift
def a_scheduler_in_the_folder(folder: Path) -> None:
    names(folder, f"{GIFT}/evil.py:S")


@gift
def a_scheduler_that_only_the_row_names(folder: Path) -> None:
    names(folder, f"{GIFT}/evil.py:S(k=1)")
    change(folder / "run.json", config={})


@gift
def a_label_before_the_file(folder: Path) -> None:
    names(folder, f"fifo={GIFT}/evil.py:S")


@gift
def a_module_of_the_working_folder(folder: Path) -> None:
    names(folder, f"{GIFT.replace('/', '.')}.evil:S")


@gift
def a_placer(folder: Path) -> None:
    names(folder, f"drf(placer='{GIFT}/evil.py:P')")


@gift
def a_fallback(folder: Path) -> None:
    names(folder, f"dl2(fallback='{GIFT}/evil.py:S')")


@gift
def a_function_of_python(folder: Path) -> None:
    names(folder, f"os:system(command='touch {CANARY}')")


@gift
def a_function_of_labkits(folder: Path) -> None:
    names(folder, "labkit.core.files:make_writable(folder='elsewhere')")


@gift
def a_file_that_is_written_as_it_learns(folder: Path) -> None:
    names(folder, "dl2(learns=True, learned='victim.safetensors')")


@gift
def bytes_that_were_trusted_beside_others_that_were_not(folder: Path) -> None:
    names(folder, f"{GIFT}/mine.py:Mine")
    shutil.copy("mine.py", folder / "mine.py")
    (folder / "helper.py").write_text(PAYLOAD)


@gift
def trusted_code_with_other_arguments(folder: Path) -> None:
    names(folder, "mine.py:forget(path='victim')")


@gift
def a_compiled_copy_of_trusted_code(folder: Path) -> None:
    names(folder, "mine.py:Mine(k=3)")
    cached = folder / "__pycache__"
    cached.mkdir()
    py_compile.compile(str(folder / "evil.py"), cfile=str(cached / "mine.cpython-311.pyc"))


@gift
def an_inventory_with_a_proxy_command(folder: Path) -> None:
    (folder / "hosts.toml").write_text(HOSTS)
    change(folder / "testbed.json", inventory=f"{GIFT}/hosts.toml")


@gift
def an_inventory_with_a_configuration_of_ssh(folder: Path) -> None:
    told = HOSTS.replace(""", proxy_command = "sh -c 'touch PWN; exit 1'" """, " ")
    (folder / "hosts.toml").write_text('[ssh]\nconfig = "config"\n' + told)
    (folder / "config").write_text(PROXY)
    change(folder / "testbed.json", inventory=f"{GIFT}/hosts.toml")


@gift
def an_inventory_whose_configuration_asks_a_program(folder: Path) -> None:
    an_inventory_with_a_configuration_of_ssh(folder)
    (folder / "config").write_text(f'Match exec "touch {CANARY}"\n  User other\n')


@gift
def a_training_script(folder: Path) -> None:
    digest = "0" * 64
    (folder / "staged").mkdir()
    with tarfile.open(folder / "staged" / f"{digest}.tar", "w") as archive:
        archive.add(folder / "run.json", arcname="train.py")
    script = {"script": "train.py", "code": f"{GIFT}/staged/{digest}.tar", "code_hash": digest}
    change(folder / "testbed.json", training={"scripts": {"resnet50": script}})


@gift
def a_script_from_elsewhere(folder: Path) -> None:
    script = {"script": "train.py", "code": "victim", "code_hash": "../../victim"}
    change(folder / "testbed.json", training={"scripts": {"resnet50": script}})


@gift
def notes_that_are_a_link(folder: Path) -> None:
    (folder / "notes.txt").symlink_to(Path("victim").absolute())


@gift
def notes_with_another_name(folder: Path) -> None:
    os.link("victim", folder / "notes.txt")


@gift
def checkpoints_elsewhere(folder: Path) -> None:
    (folder / "checkpoints").symlink_to(Path("elsewhere").absolute())


@gift
def a_lock_elsewhere(folder: Path) -> None:
    (folder / ".writer").unlink(missing_ok=True)
    (folder / ".writer").symlink_to(Path("victim").absolute())


@gift
def drafts_elsewhere(folder: Path) -> None:
    (folder / ".testbed.json").symlink_to(Path("victim").absolute())


@gift
def events_elsewhere(folder: Path) -> None:
    (part,) = folder.glob("events-*")
    part.unlink()
    part.symlink_to(Path("victim").absolute())


@gift
def a_folder_that_is_a_link(folder: Path) -> None:
    folder.rename("elsewhere/gift")
    folder.symlink_to(Path("elsewhere/gift").absolute())


@gift
def a_row_that_is_a_pipe(folder: Path) -> None:
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")


@gift
def ids_that_a_shell_or_terminal_obeys(folder: Path) -> None:
    frame, notes = decode_frame((folder / "jobs.parquet").read_bytes())
    frame["id"] = [f"x\ntouch {CANARY}\n#\x1b]0;{i}\x07\u202e" for i in range(len(frame))]
    (folder / "jobs.parquet").write_bytes(encode_frame(frame, notes={NAME_KEY: notes[NAME_KEY]}))


@gift
def another_runs_name(folder: Path) -> None:
    change(folder / "run.json", run="../../victim")


@gift
def a_queue_with_a_scheduler(folder: Path) -> None:
    (folder / "evil.py").write_text(PAYLOAD + SCHEDULER)
    queue(folder, scheduler="evil.py:S")


@gift
def a_queue_with_a_speed_model(folder: Path) -> None:
    (folder / "evil.py").write_text(PAYLOAD + SCHEDULER)
    queue(folder, options={"speed": f"{GIFT}/evil.py:S"})


@gift
def a_queue_with_an_inventory(folder: Path) -> None:
    (folder / "hosts.toml").write_text(HOSTS)
    queue(folder, inventory=f"{GIFT}/hosts.toml")


@gift
def a_queue_with_a_script(folder: Path) -> None:
    script = {"script": "train.py", "code": "victim", "code_hash": "0" * 64}
    queue(folder, training={"scripts": {"resnet50": script}})


@gift
def a_queue_whose_run_is_elsewhere(folder: Path) -> None:
    queue(folder)
    (folder / "a-1").symlink_to(Path("elsewhere").absolute())


@gift
def a_queue_whose_report_and_log_are_elsewhere(folder: Path) -> None:
    queue(folder, runs=[{"run": "a-1", "scheduler": "fifo", "repeat": 1, "state": "done"}])
    shutil.copytree("runs/honest", folder / "a-1")
    for name in ("report.html", "log.txt"):
        (folder / name).symlink_to(Path("victim").absolute())


@gift
def a_sweep_whose_cells_are_elsewhere(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "cells.jsonl").symlink_to(Path("victim").absolute())


@gift
def a_sweep_whose_runs_are_elsewhere(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "cells.jsonl").write_text("")
    (folder / "runs").symlink_to(Path("elsewhere").absolute())


@gift
def a_folder_of_another_user(folder: Path) -> None:
    names(folder, "fifo")
    if not os.getuid():
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534)


@gift
def times_and_jobs_that_there_are_none_of(folder: Path) -> None:
    (part,) = folder.glob("events-*")
    frame, _ = decode_frame(part.read_bytes())
    frame.loc[0, "time_s"], frame.loc[1, "job"] = np.inf, 1_000_000
    part.write_bytes(encode_frame(frame))
