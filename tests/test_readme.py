"""The README tells what really comes out."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from labkit.cli import DEMO_SCHEDULERS
from labkit.cli_compared import print_finding, print_header, print_table
from labkit.experiment import compare
from labkit.experiment.caveats import Caveat
from labkit.experiment.demo import CLUSTER, trace
from tests.numbers_alike import difference
from tests.test_cli_help import parsed

README = Path(__file__).parents[1] / "README.md"


def test_what_it_shows_is_what_the_demo_prints(capsys):
    shown = re.search(r"<!-- demo -->\n```\n(.*?)```", README.read_text(), re.DOTALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)  # printed as notes
        records = compare(trace(), cluster=CLUSTER, schedulers=DEMO_SCHEDULERS)
    print_header(records)
    print_table(records)
    print_finding(records)
    assert difference(without_times(shown[1]), without_times(capsys.readouterr().out)) is None


def without_times(text: str) -> list[str]:
    """Return lines without the last cell of each row: how long it took."""
    rows = tuple(f" {name} " for name in DEMO_SCHEDULERS.split(","))
    return [line.rstrip().rpartition(" ")[0].rstrip() if line.startswith(rows) else line.rstrip()
            for line in text.splitlines()]  # fmt: skip


def test_its_commands_can_be_typed_as_they_stand():
    """Every line that begins with labkit is read by the command line as it would be; nothing is run."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)).replace("\\\n", " ")
    lines = [line.partition("  #")[0].strip() for line in blocks.splitlines()]
    typed = [line for line in lines if line.startswith("labkit")]
    assert len(typed) > 12
    for line in typed:
        parsed(line)


def test_its_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    space: dict[str, object] = {}
    for block in blocks:
        exec(block.replace('"traces/', f'"{README.parent}/traces/'), space)
    assert "SmallestFirst" in space
