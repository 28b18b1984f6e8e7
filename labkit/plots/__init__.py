"""Figures: numbers in, an Altair chart out; one family to a file, all in the look of `theme`.

What it offers is loaded when it is first used: Altair takes a second.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Altair imports jsonschema, which takes 4 s to build a grammar of IRIs where Jupyter has brought it; charts have none.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

if TYPE_CHECKING:
    from labkit.plots.bars_and_lines import plot_bars, plot_lines, plot_matrix
    from labkit.plots.decisions import allocations, plot_allocations, plot_decisions, plot_forwarding, plot_scaling
    from labkit.plots.fidelity import plot_explained, plot_fidelity, plot_gantts
    from labkit.plots.fits import fit_curve, interference_residuals, plot_fit_curve, plot_residuals, residuals
    from labkit.plots.gantt import plot_gantt, plot_gantt_stack, plot_overheads
    from labkit.plots.gpus import plot_allocation, plot_filling, plot_gpu_lanes
    from labkit.plots.interference import plot_contention, plot_slowdowns, slowdowns
    from labkit.plots.jct import cost_table, plot_cost, plot_fairness, plot_jct_bars, plot_jct_by_load, plot_jct_cdf
    from labkit.plots.paper import for_paper, save_for_paper
    from labkit.plots.report import write_report
    from labkit.plots.sweep import plot_sweep, plot_sweep_differences, plot_sweep_means
    from labkit.plots.theme import scheduler_colours
    from labkit.plots.topology import plot_topology
    from labkit.plots.traces import plot_arrivals, plot_durations, plot_sizes
    from labkit.plots.training import (
        learning_curve,
        loss_curve,
        plot_convergence,
        plot_learning,
        plot_pauses,
        plot_staleness,
        plot_step_times,
        plot_training,
        plot_tuning,
    )
    from labkit.plots.utilisation import plot_heat_map, plot_shares, plot_utilisation

_MODULES = {
    "allocations": "decisions", "cost_table": "jct", "fit_curve": "fits", "for_paper": "paper",
    "interference_residuals": "fits", "learning_curve": "training", "loss_curve": "training",
    "plot_allocation": "gpus", "plot_allocations": "decisions", "plot_arrivals": "traces",
    "plot_bars": "bars_and_lines", "plot_contention": "interference", "plot_convergence": "training",
    "plot_cost": "jct", "plot_decisions": "decisions", "plot_durations": "traces", "plot_explained": "fidelity",
    "plot_fairness": "jct", "plot_fidelity": "fidelity", "plot_filling": "gpus", "plot_fit_curve": "fits",
    "plot_forwarding": "decisions",
    "plot_gantt": "gantt", "plot_gantt_stack": "gantt", "plot_gantts": "fidelity", "plot_gpu_lanes": "gpus",
    "plot_heat_map": "utilisation", "plot_jct_bars": "jct", "plot_jct_by_load": "jct", "plot_jct_cdf": "jct",
    "plot_learning": "training", "plot_lines": "bars_and_lines",
    "plot_matrix": "bars_and_lines", "plot_overheads": "gantt",
    "plot_pauses": "training", "plot_residuals": "fits", "plot_scaling": "decisions", "plot_shares": "utilisation",
    "plot_sizes": "traces", "plot_slowdowns": "interference", "plot_staleness": "training",
    "plot_step_times": "training", "plot_sweep": "sweep", "plot_sweep_differences": "sweep",
    "plot_sweep_means": "sweep", "plot_topology": "topology", "plot_training": "training",
    "plot_tuning": "training", "plot_utilisation": "utilisation", "residuals": "fits", "save_for_paper": "paper",
    "scheduler_colours": "theme", "slowdowns": "interference", "write_report": "report",
}  # fmt: skip

__all__ = [
    "allocations", "cost_table", "fit_curve", "for_paper", "interference_residuals", "learning_curve", "loss_curve",
    "plot_allocation", "plot_allocations", "plot_arrivals", "plot_bars", "plot_contention", "plot_convergence",
    "plot_cost", "plot_decisions", "plot_durations", "plot_explained", "plot_fairness", "plot_fidelity",
    "plot_filling", "plot_fit_curve", "plot_forwarding", "plot_gantt", "plot_gantt_stack", "plot_gantts",
    "plot_gpu_lanes",
    "plot_heat_map", "plot_jct_bars", "plot_jct_by_load", "plot_jct_cdf", "plot_learning", "plot_lines",
    "plot_matrix", "plot_overheads", "plot_pauses", "plot_residuals", "plot_scaling", "plot_shares", "plot_sizes",
    "plot_slowdowns", "plot_staleness", "plot_step_times", "plot_sweep", "plot_sweep_differences",
    "plot_sweep_means", "plot_topology", "plot_training", "plot_tuning", "plot_utilisation", "residuals",
    "save_for_paper", "scheduler_colours", "slowdowns", "write_report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'labkit.plots' has no attribute '{name}'")
    return getattr(import_module(f"labkit.plots.{_MODULES[name]}"), name)
