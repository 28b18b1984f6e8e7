"""Views for notebooks: `%load_ext labkit.notebook`, a run that can be watched and steered, and the lab as one widget.

Views stay outside the core: they read events, and call what a script would call. What they show is made in
`labkit.live`; to add one, write a feed there and subclass `labkit.notebook.views.LiveView`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.notebook.app import LabApp
    from labkit.notebook.run import LiveRun
    from labkit.notebook.training import watch
    from labkit.notebook.views import LiveCards, LiveDecisions, LiveGantt, LiveHeatMap, LiveSignals, RunBoard
    from labkit.notebook.where import live_auto, live_deploy

_HOME = {
    "LabApp": "app", "watch": "training", "LiveCards": "views", "LiveDecisions": "views", "LiveGantt": "views",
    "LiveHeatMap": "views", "LiveRun": "run", "LiveSignals": "views", "RunBoard": "views", "live_auto": "where",
    "live_deploy": "where",
}  # fmt: skip

__all__ = [
    "LabApp", "LiveCards", "LiveDecisions", "LiveGantt", "LiveHeatMap", "LiveRun", "LiveSignals", "RunBoard",
    "live_auto", "live_deploy", "load_ipython_extension", "watch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def load_ipython_extension(shell: Any) -> None:
    """Show figures without a network, and clusters, jobs, records and snapshots as small tables."""
    from labkit.notebook.html import SHOWN, plain
    from labkit.plots import theme

    theme.enable()
    formatters = shell.display_formatter.formatters
    for kind, as_html in SHOWN.items():
        formatters["text/html"].for_type(kind, as_html)
        formatters["text/plain"].for_type(kind, lambda thing, printer, _cycle: printer.text(plain(thing)))


def unload_ipython_extension(shell: Any) -> None:
    """Show them as Python does."""
    from labkit.notebook.html import SHOWN

    for kind in SHOWN:
        for mime in ("text/html", "text/plain"):
            shell.display_formatter.formatters[mime].pop(kind, None)
