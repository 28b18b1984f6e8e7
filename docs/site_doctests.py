"""Examples within docstrings, for the site: `>>>` in running text would be a quotation in Markdown."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Doctests(Extension):
    """Fence doctests that stand outside of a section Examples, which griffe knows by itself."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring with its doctests in fences."""
    lines, inside, section = [], False, ""
    source = text.split("\n")
    for number, line in enumerate(source):
        if number + 1 < len(source) and source[number + 1].startswith("---"):
            section = line.strip()
        starts = line.lstrip().startswith(">>>") and not inside and section != "Examples"
        if starts:
            lines.append("```python")
            inside = True
        if inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, *(["```"] if inside else [])])
