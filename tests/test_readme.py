"""README shows what really comes out, and stays short."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from labkit.cli.compare import DEMO_SCHEDULERS
from labkit.cli.tables import print_finding, print_header, print_table
from labkit.experiment import compare
from labkit.experiment.caveats import Caveat
from labkit.experiment.demo import CLUSTER, trace
from tests.cli.test_help import parsed
from tests.numbers_alike import difference

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PICTURES = re.findall(r'(?:src|srcset)="([^"]+)"|!\[[^]]*\]\(([^)]+)\)', README)
LINKS = sorted(set(re.findall(r"(?<!!)\[[^]]+\]\(([^)]+)\)", README)))
MOST_WORDS = 900
MOST_BYTES = 300_000
ROW = 9
"""Cells of a row of the table."""


def test_what_it_shows_is_what_the_demo_prints(capsys):
    shown = re.search(r"<!-- demo -->\n```\n(.*?)```", README, re.DOTALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)  # printed as notes
        records = compare(trace(), cluster=CLUSTER, schedulers=DEMO_SCHEDULERS)
    print_header(records)
    print_table(records)
    print_finding(records)
    printed = iter(without_times(capsys.readouterr().out))  # in this order; notes are left out
    missing = [line for line in without_times(shown[1]) if all(difference(line, out) for out in printed)]
    assert missing == []
    assert all(f"\n {name} " in shown[1] for name in DEMO_SCHEDULERS.split(","))


def without_times(text: str) -> list[str]:
    """Return the words of lines, of a row those without the last: how long it took, which widens its column, too."""
    names = DEMO_SCHEDULERS.split(",")
    lines = [line.split() for line in text.splitlines()]
    return [" ".join(words[:-1] if words and words[0] in names and len(words) == ROW else words) for words in lines]


def test_its_commands_can_be_typed_as_they_stand():
    """Every command of labkit, in a block or in the text, is read by the command line; nothing is run."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")
    lines = [line.partition("  #")[0].strip() for line in blocks.splitlines()]
    within = [" ".join(code.split()) for code in re.findall(r"`(labkit \w+ [^`]+)`", README)]
    typed = [line for line in lines if line.startswith("labkit")] + within
    assert len(typed) > 12
    for line in typed:
        parsed(line)


def test_the_targets_of_make_that_it_names_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)\b", README, re.MULTILINE))
    assert {"demo", "lab"} <= named <= targets


def test_its_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    space: dict[str, object] = {}
    for block in blocks:
        exec(block, space)
    assert "SmallestFirst" in space
    assert space["run"].summary["mean_jct_s"] / 3600 == pytest.approx(3.84, abs=0.005)


def test_it_is_short():
    assert len(README.split()) <= MOST_WORDS


@pytest.mark.parametrize("picture", sorted({first or second for first, second in PICTURES}))
def test_its_pictures_are_there_and_light(picture):
    assert 0 < (ROOT / picture).stat().st_size < MOST_BYTES


def test_it_has_a_picture_for_light_and_dark():
    assert len(PICTURES) == 2


@pytest.mark.parametrize("link", LINKS)
def test_its_links_lead_somewhere(link):
    target, _, anchor = link.partition("#")
    assert (ROOT / target).exists()
    headings = re.findall(r"^#+ (.+)$", (ROOT / target).read_text("utf-8"), re.MULTILINE) if anchor else []
    assert not anchor or anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
