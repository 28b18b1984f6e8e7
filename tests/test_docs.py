"""The documents say what the code does: their code runs, their links lead somewhere, their tables are complete."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import labkit
from labkit import placers, schedulers
from labkit.core import Jobs, Kind
from labkit.workloads.readers import FORMATS, accounting, alibaba, gavel, google2011, google2019, helios, own, philly
from labkit.workloads.readers.published import POLLUX_COLUMNS, TABLES
from tests.cli.test_help import parsed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
DECISIONS = [page for page in PAGES if page.parent.name == "why"]
COLUMNS = {
    "gavel": gavel.COLUMNS,
    "gavel-old": gavel.OLD_COLUMNS,
    "shockwave": gavel.SHOCKWAVE_COLUMNS,
    "philly-csv": philly.COLUMNS,
    "helios": helios.COLUMNS,
    "alibaba-2020": alibaba.JOB_COLUMNS + alibaba.TASK_COLUMNS,
    "alibaba-2023": alibaba.COLUMNS,
    "google-2011": google2011.COLUMNS,
    "google-2019": google2019.COLUMNS,
    "slurmdb": accounting.SLURMDB,
    "pollux": POLLUX_COLUMNS,
    **{name: table.headers[0] for name, table in TABLES.items()},
}
TO_BE_WRITTEN = {"labkit/schedulers/smallest_first.py"}


@cache
def text_of(page: Path | str) -> str:
    return (DOCS / page).read_text("utf-8")


def code_of(page: Path) -> list[tuple[int, str]]:
    """Return the python blocks of a page, each with the number of its first line."""
    text = text_of(page)
    found = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)) + 1, block[1]) for block in found]


def slugs(text: str) -> set[str]:
    """Return what links to headings of a page look like."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section(page: str, heading: str) -> str:
    """Return the text under a second-level heading that begins with some words."""
    parts = re.split(r"^## ", text_of(page), flags=re.MULTILINE)
    found = [part for part in parts if re.match(rf"(?:[\w-]+, )*{re.escape(heading)}(?![\w-])", part)]
    assert len(found) == 1, f"{page} has {len(found)} sections named {heading}"
    return found[0]


@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)], ids=str)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    namespace = {"__name__": "__main__"}
    for line, block in code_of(page):
        exec(compile("\n" * (line - 1) + block, str(DOCS / page), "exec"), namespace)


def test_commands_of_the_pages_can_be_typed_as_they_stand():
    """Lines of their blocks that begin with labkit are read by the command line as they would be; nothing is run."""
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"^```(?:sh|bash|text)?\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)
    ]
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in lines:
        if line.startswith("labkit ") and "-completion" not in line:  # that option acts as soon as it is read
            parsed(re.split(r"\s+# ", line)[0])


def test_the_scheduler_that_a_page_promises_to_be_eight_lines_is():
    _, block = code_of(Path("writing-a-scheduler.md"))[0]
    assert len([line for line in block.splitlines() if line.strip()]) == 8


def test_links_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", text_of(page)):
            linked = (DOCS / page).parent / target if target else DOCS / page
            assert linked.exists(), f"{page}: {target}"
            assert not anchor or anchor in slugs(linked.read_text("utf-8")), f"{page}: {target}#{anchor}"


def test_files_that_are_named_are_there():
    named = {name for page in PAGES for name in re.findall(r"`((?:[\w-]+/)+[\w-]*(?:\.py)?)`", text_of(page))}
    roots = (ROOT, ROOT / "labkit")
    assert {name for name in named - TO_BE_WRITTEN if not any((root / name).exists() for root in roots)} == set()


def test_the_layers_are_those_that_are_checked():
    contract, _ = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    shown = re.search(r"```text\n(cli .*?)\n```", text_of("architecture.md"), re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == contract["layers"]


@pytest.mark.parametrize("page", DECISIONS, ids=str)
def test_a_decision_is_told_first_then_why_and_when_to_think_again(page):
    text = text_of(page)
    assert text.startswith("# ")
    places = [text.index(part) for part in ("**Why.**", "**What we do.**", "**Revisit**")]
    assert places == sorted(places)
    assert f"]({page.as_posix()})" in text_of("architecture.md")


def test_the_glossary_is_sorted_and_explains_nothing_twice():
    terms = re.findall(r"^\| ([^|]+?) \| [^|]+ \|$", text_of("glossary.md"), re.MULTILINE)[1:]
    plain = [re.sub(r"[^\w ]", "", term).casefold() for term in terms]
    assert plain == sorted(set(plain))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_described_with_all_its_columns(name):
    described = section("trace-formats.md", name)
    assert [column for column in COLUMNS.get(name, ()) if f"`{column}`" not in described] == []


def test_the_columns_of_labkits_own_traces_are_all_there_with_their_defaults():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\| ([^|]*?) \|", section("trace-formats.md", "csv"), re.MULTILINE)
    assert {column for column, _, _ in rows} == own.COLUMNS
    made = Jobs.of(arrival_s=[5.0], total_steps=[7.0]).to_frame().iloc[0]
    for column, _, default in rows:
        if default in {"unknown", "none"}:
            assert np.isnan(made[column]), column
        elif default.startswith("`"):
            assert made[column] == made[default.strip("`")], column
        elif default not in {"must be there", "0, 1, ..."}:
            assert str(made[column]).removesuffix(".0") == default, column


def test_every_scheduler_placer_and_kind_of_event_has_its_rules_written_down():
    text = text_of("mechanisms.md")
    names = [f"**{name}**" for name in schedulers.available()] + [
        f"**{name}**" for name in placers.__all__ if name[0].isupper()
    ]
    joined = text.replace("**srtf, las**", "**srtf** **las**")
    assert [name for name in names if name not in joined] == []
    told = text + text_of("why/events.md")
    assert [kind.name for kind in Kind if kind.name not in told and kind.name.lower() not in told] == []


def test_every_number_of_a_summary_and_every_column_of_a_job_is_defined():
    run = labkit.simulate(Jobs.of(arrival_s=0, total_steps=1, duration_s=1), cluster="no_network(1)", scheduler="fifo")
    metrics = section("mechanisms.md", "Metrics")
    plain = {"job", "id", "model", "asked_gpus", "arrival_s", "first_start_s", "completion_s", "duration_s"}
    names = set(run.summary) | set(run.table.columns) - plain
    assert {name for name in names if f"`{name}`" not in metrics} == set()


def test_a_job_that_outlived_its_declaration_has_one_per_cent_left():
    jobs = Jobs.of(arrival_s=[0, 150], total_steps=100, true_steps=200, duration_s=100, n_workers=1)
    experiment = labkit.Experiment.of(jobs, cluster="no_network(1)", speed="recorded")
    scheduler = schedulers.make("fifo")
    session = experiment.session(scheduler)
    session.step(scheduler.schedule(session.snapshot()))
    snapshot = session.snapshot()
    assert snapshot.now_s == 150
    assert snapshot.jobs.steps.tolist() == [150, 0]
    assert snapshot.jobs.remaining_steps.tolist() == [1, 100]
