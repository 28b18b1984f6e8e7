"""Words that native readers of this field stumble over are on no page: each pattern with what stands in its place."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import typer

from labkit.cli import help as cli_help
from labkit.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PATTERNS = {
    r"\bin the mean\b": "on average",
    r"\d %(?![a-z(])": "94%, without a blank",
    r"\bnot told apart\b": "does not differ significantly",
    r"\b(note|table|figure|caption|header|output)s? tells?\b": "reports, shows",
    r"\b[Gg]o(es)? on\b": "continues, resumes",
    r"\bas can be\b": "minimise, maximise",
    r"\bends? again\b": "stops",
    r"\d+(\.\d+)?x (shorter|faster|longer)\b": "a ratio or a percentage",
    r"\b95% interval\b": "95% confidence interval",
    r"\bprocessor (time|seconds|minutes)\b|\bs(econds)? of (a|the) processor\b": "CPU time",
    r"\bcontrol groups?\b": "cgroups",
    r"\bsigns? of life\b": "heartbeat",
    r"\bmade again\b": "reproduced, created again",
}


def prose(text: str) -> str:
    """Return text without code, in which names and quotations stand."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def found(text: str) -> list[str]:
    hits = [(pattern, hit) for pattern in PATTERNS for hit in re.finditer(pattern, text)]
    return [f"...{text[max(hit.start() - 40, 0) : hit.end() + 20]!r}: {PATTERNS[pattern]}" for pattern, hit in hits]


def test_no_page_and_no_notebook_has_one_of_them():
    texts = {page.name: page.read_text("utf-8") for page in PAGES}
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        texts[path.name] = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert {name: hits for name, text in texts.items() if (hits := found(prose(text)))} == {}


def test_no_help_text_has_one_of_them():
    root = typer.main.get_command(app)
    texts, headless = [], []
    for name in cli_help.COMMANDS:
        command = root
        for word in name.split():
            command = command.commands[word]
        texts += [command.help or "", *(param.help or "" for param in command.params if hasattr(param, "help"))]
        headless += [f"{name}: {text}" for text in texts if re.match("(Of|Else)\\b", text) or "; else " in text]
    assert found(prose("\n\n".join(texts))) == []
    assert headless == [], "each text begins with its noun or verb; a default is 'Default: ...'"


def messages(path: Path) -> list[str]:
    """Return the strings of a module but for docstrings: errors, notes, captions, texts of widgets."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in strings if id(node) not in docstrings and " " in node.value]


def test_no_message_has_one_of_them():
    texts = {str(path.relative_to(ROOT)): "\n".join(messages(path)) for path in sorted((ROOT / "labkit").rglob("*.py"))}
    assert {name: hits for name, text in texts.items() if (hits := found(prose(text)))} == {}


def test_the_check_finds_what_it_is_for():
    assert len(found("A note tells that 94 % are done in the mean, and the run goes on.")) == 4
    assert found(prose("`as can be` and\n```\n94 %\n```\n")) == []
