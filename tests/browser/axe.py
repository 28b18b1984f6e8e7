"""What axe-core finds wrong with a page that is open: names, order, contrast, and what a keyboard cannot reach."""

from __future__ import annotations

from typing import Any

import pytest


def violations(page: Any, *, within: str = "html") -> list[str]:
    """Return a line for each fault in an element of a page of Playwright, with its place; [] where there is none.

    All rules of WCAG 2.1 that axe-core checks, and its good practices; a part of a page is held to WCAG alone.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not here; see [dev]").Axe()
    only = {} if within == "html" else {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
    found = axe.run(page, context=within, options=only).response["violations"]
    return [f"{fault['id']} ({fault['impact']}): {node['html'][:200]}" for fault in found for node in fault["nodes"]]
