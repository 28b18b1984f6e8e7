"""Figures: numbers in, an Altair chart out; one family to a file, all in the look of `theme`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.plots.paper import for_paper, save_for_paper

__all__ = ["for_paper", "save_for_paper"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'labkit.plots' has no attribute '{name}'")
    from labkit.plots import paper  # when it is asked for: Altair takes a second

    return getattr(paper, name)
