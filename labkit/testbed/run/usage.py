"""Resources that the tasks on all hosts use now, as their agents measure them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from labkit.testbed.agent.client import Agent
from labkit.testbed.inventory import Machine
from labkit.testbed.run.agents import each
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.ssh.outcomes import HostOutcome

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Final = ("host", "run", "task", "n_processes", "cpu_percent", "memory_mb", "gpu_memory_mb")


def usage(fleet: Fleet) -> pd.DataFrame:
    """Return a row per task that runs on a host; hosts that do not answer have none.

    Returns
    -------
    DataFrame
        host, run, task, n_processes, cpu_percent (100: one core), memory_mb, gpu_memory_mb (0 where there is no GPU).
    """
    import pandas as pd

    rows: dict[str, list[dict[str, object]]] = {name: [] for name in fleet.inventory.names}

    def look(machine: Machine, agent: Agent) -> HostOutcome:
        for task in agent.measure().tasks:
            values = {**asdict(task), "host": machine.name, "memory_mb": task.rss_mb}
            rows[machine.name].append({name: values[name] for name in COLUMNS})
        return HostOutcome(machine.name, True, f"{len(rows[machine.name])} tasks")

    each(fleet, look, start=False, renew=False)
    return pd.DataFrame([row for tasks in rows.values() for row in tasks], columns=list(COLUMNS))
