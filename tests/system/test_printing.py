"""What people read in a terminal cannot control it, whichever file, name or option it came from."""

from __future__ import annotations

import io
import json
import shutil
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labkit.cli.tables import numbers, show
from labkit.cli.watch import opened
from labkit.core import Jobs
from labkit.experiment import simulate
from labkit.results import RunWriter
from labkit.system.printing import BarStream, GuardedStream, printable, terminal
from labkit.system.progress import counter
from tests.command import labkit

EVIL = "\x1b]0;T\x07\x1b[2J\x9b31m\u202eabc\u2066\u2028x\x85y\x7fz\r0\x08"
FORGED = "FORGED: run r is done"


BIDI = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")


def raw(text: str) -> list[str]:
    """Return the letters of an output that control a terminal."""
    odd = [
        c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(c) in BIDI
    ]
    return [c for c in odd if c not in "\n\t"]


def clean(done) -> None:
    """Refuse an output that obeys a file."""
    for text in (done.stdout, done.stderr):
        assert not raw(text), ascii(text)[:2000]
        assert not [line for line in text.splitlines() if line.startswith("FORGED")], text
        assert "Traceback" not in text, text


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Path:
    """The folder of a run."""
    jobs = Jobs.of(
        arrival_s=[0, 1, 30], total_steps=60, duration_s=60, n_workers=4, id=["a", "b", "c"], model=["m", "n", "m"]
    )
    record = simulate(jobs, cluster="no_network(1)", scheduler="las")
    root = tmp_path_factory.mktemp("printing")
    info = replace(record.info, run="honest")
    with RunWriter.create(root, info=info, jobs=record.jobs, cluster=record.cluster) as writer:
        writer.append(record.events)
    return root / "honest"


def poisoned(honest: Path, place: Path, *, evil: str, ids: bool) -> Path:
    """Return a copy of a run whose texts control a terminal: all but the jobs' ids, or those alone."""
    folder = place / "runs" / "evil"
    shutil.copytree(honest, folder)
    (folder / ".writer").unlink(missing_ok=True)
    table = pq.read_table(folder / "jobs.parquet")
    for i, field in enumerate(table.schema):
        if field.type in (pa.string(), pa.large_string()) and (field.name == "id") == ids:
            texts = pa.array([f"{evil}{row if ids else ''}" for row in range(len(table))], field.type)
            table = table.set_column(i, field, texts)
    pq.write_table(table, folder / "jobs.parquet")
    if not ids:
        cluster = json.loads((folder / "cluster.json").read_text())
        cluster["name"], cluster["machines"] = evil, [f"{evil}{i}" for i in range(len(cluster["machines"]))]
        (folder / "cluster.json").write_text(json.dumps(cluster))
        info = json.loads((folder / "run.json").read_text())
        info |= dict.fromkeys(("scheduler", "cluster", "trace", "host", "command", "run"), evil) | {
            "dropped": {"a": evil}
        }
        (folder / "run.json").write_text(json.dumps(info))
        (folder / "notes.txt").write_text(evil + "\n")
    return folder


COMMANDS = (
    "watch runs/evil --once", "watch evil --once", "runs list", "runs compare runs/evil honest --out r.html",
    "report runs/evil --out r.html", "figure runs/evil --kind gantt --out g.svg", "attach runs/evil",
    "fidelity runs/evil", "runs tag runs/evil x", "runs remove evil", "traces info runs/evil/jobs.parquet",
)  # fmt: skip


@pytest.mark.parametrize("ids", [True, False])
def test_no_text_of_a_run_folder_controls_the_terminal(honest, tmp_path, ids):
    poisoned(honest, tmp_path, evil=f"{EVIL}\n{FORGED}", ids=ids)
    shutil.copytree(honest, tmp_path / "honest")
    shown = 0
    for command in COMMANDS:
        done = labkit(*command.split(), cwd=tmp_path)
        clean(done)
        shown += "\\x1b" in done.stdout + done.stderr
    assert shown > (0 if ids else 2), "the texts are shown, written out"


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", EVIL], ["simulate", "demo", "--scheduler", EVIL], ["simulate", "demo", "--cluster", EVIL],
        ["simulate", "demo", "--cluster", "demo", "--scheduler", f"las(quantum_s='{EVIL}')"], ["compare", "demo", EVIL],
        [EVIL], ["simulate", "demo", f"--{EVIL}"], ["runs", "list", "--runs", EVIL], ["watch", EVIL],
        ["traces", "fetch", EVIL], ["deploy", "demo", "--inventory", EVIL], ["weights", "show", EVIL],
        ["sweep", "demo", "--set", EVIL], ["tune", "las", "--trace", "demo", "--param", EVIL], ["published", EVIL],
        ["figure", EVIL, "--out", "x.svg"], ["new", "scheduler", EVIL], ["schedulers", EVIL],
    ],
)  # fmt: skip
def test_nothing_typed_controls_the_terminal(tmp_path, words):
    clean(labkit(*words, cwd=tmp_path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "id,arrival_s,total_steps,duration_s,n_workers,model,user\nE,0,5,5,1,E,E\n"),
        ("t.csv", "id,arrival_s,total_steps,duration_s,n_workers,E\na,0,5,5,1,E\n"),
        ("t.csv", "E,start,what,gpu\nE,E,E,E\n"),
        ("t.toml", '[[hosts]]\nname = "E"\ngpus = 4\ncpus = "E"\n'),
        ("t.json", '{"E": "E"}'),
    ],
)
def test_no_cell_of_a_file_controls_the_terminal(tmp_path, name, text):
    evil = EVIL.replace("\r", "") if name == "t.csv" else EVIL
    (tmp_path / name).write_text(text.replace("E", evil), encoding="utf-8")
    for command in (f"simulate {name} --cluster demo", f"traces info {name}", f"traces import {name} --yes",
                    f"simulate demo --cluster {name}", f"simulate demo --profile {name}"):  # fmt: skip
        clean(labkit(*command.split(), cwd=tmp_path))


def test_a_table_keeps_its_columns_and_takes_no_text_for_markup():
    from rich.table import Table

    table = Table(box=None)
    table.add_column("name")
    table.add_column("n")
    table.add_row(f"[red]{EVIL}:smile:\n{FORGED}", "1")
    file = io.StringIO()
    terminal(file, width=200).print(table)
    head, row = file.getvalue().splitlines()
    assert not raw(row)
    assert row.split()[0] == printable(f"[red]{EVIL}:smile:\n{FORGED}").split()[0]
    assert head.index("n", 5) == row.rindex("1")


def test_headings_have_lines_and_cells_have_one(capsys):
    from rich.table import Table

    table = Table(box=None)
    numbers(table, "against\nfifo")
    table.add_row("1\n2")
    show(table)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["against"], ["fifo"], ["1\\n2"]]


def test_bars_move_their_cursor_and_names_do_not(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", GuardedStream(file))
    with counter(2, name=EVIL, unit="cell") as bar:
        bar.update()
        bar.set_postfix_str(EVIL)
        bar.write(EVIL, file=sys.stderr)
    text = file.getvalue()
    assert text.startswith("\r")
    assert not raw(text.replace("\r" + printable(EVIL), "").replace("\r", ""))
    assert BarStream(file) == sys.stderr, "tqdm clears its bar for a line on the same stream"


def test_json_of_a_guarded_stream_is_still_json():
    file = io.StringIO()
    print(json.dumps({"name": EVIL + "\ud800"}), file=GuardedStream(file))
    assert json.loads(file.getvalue()) == {"name": EVIL + "\ud800"}


def test_all_consoles_are_the_guarded_one():
    for path in (Path(__file__).parents[2] / "labkit").rglob("*.py"):
        makes = "Console(" in path.read_text("utf-8") or "import tqdm" in path.read_text("utf-8")
        assert not makes or path.name in ("printing.py", "progress.py"), path


def test_the_secret_of_a_page_is_no_argument_of_the_browser(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr("typer.launch", asked.append)
    with opened("http://127.0.0.1:1/SECRET/"):
        (file,) = map(Path, asked)
        assert "SECRET" not in str(file)
        assert "url=http://127.0.0.1:1/SECRET/" in file.read_text()
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not file.parent.exists()
