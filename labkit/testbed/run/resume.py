"""Taking over a run of another process: its jobs are adopted where they run, or restarted from their checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from labkit.core.events import Cause, Events, Kind, joined
from labkit.core.jobs import Jobs
from labkit.core.ledger import Ledger
from labkit.testbed.run.agent_pool import AgentPool
from labkit.testbed.run.amounts import given
from labkit.testbed.run.event_rows import row
from labkit.testbed.run.events import RunEvents
from labkit.testbed.run.saved_state import SavedState
from labkit.testbed.run.training import place_of


class RunTakeover:
    """Takes over the jobs of a run of another process.

    Parameters
    ----------
    jobs : Jobs
        Of the run.
    ledger : Ledger
        After the events of the other process.
    run_events, hosts : RunEvents, AgentPool
        Of this process.
    note : callable
        Keeps a sentence for people.
    """

    def __init__(
        self, jobs: Jobs, *, ledger: Ledger, run_events: RunEvents, hosts: AgentPool, note: Callable[[str], None]
    ) -> None:
        self._jobs, self._ledger, self._run_events, self._hosts, self._note = jobs, ledger, run_events, hosts, note

    def adopt(self, job: int, memory: SavedState) -> None:
        """Take over a job that had tasks when the other process ended."""
        run_events, cluster = self._run_events, self._run_events.cluster
        number = np.array([job], np.int32)
        _, role, group, count = self._ledger.book.of(number)
        cpus, memory_gb = self._ledger.book.amounts(number)
        place = place_of(cluster, role=role, group=group, count=count)
        amounts = given(cluster, role=role, group=group, count=count, cpus=cpus, memory_gb=memory_gb)
        run_events.places[job], run_events.amounts[job] = place, amounts
        if np.isfinite(self._ledger.belief["first_start_s"][job]):
            run_events.training.add(job)
        if home := memory.homes.get(str(job)):
            was = {site: (w, s) for site, (w, s) in memory.places.get(str(job), {}).items()}
            run_events.deployments[job].adopt(home, was or place, amounts=amounts)
        run_events.deployments[job].set_target(place, amounts=amounts)

    def restart(self, holding: list[int], memory: SavedState, *, time_s: float) -> list[Events]:
        """End what is left of a run under its earlier name, and copy the checkpoints of its jobs here.

        Returns
        -------
        list of Events
            A FAILED row for each job in `holding`, at `time_s`, with the steps that its checkpoint keeps.
        """
        self._hosts.end(memory.run)
        rows = []
        for job in holding:
            deployment, home = self._run_events.deployments[job], memory.homes.get(str(job), "")
            why = "it did not train yet" if not home else f"host {home} cannot be reached"
            if self._hosts.up.get(home):
                why = deployment.fetch_from(home, run=memory.run)
            kept = deployment.progress.saved
            start = f"from its newest checkpoint, step {kept} or later" if kept or not why else "from its beginning"
            self._note(f"job {self._jobs.id[job]} was stopped and goes on {start}{f' ({why})' if why else ''}")
            columns = {"value": float(kept), "speed": 0.0, "time_s": time_s, "cause": Cause.KILLED}
            rows.append(row(Kind.FAILED, job=job, **columns))
        self._ledger.fold(joined(rows))
        return rows
