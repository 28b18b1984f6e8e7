"""The state of one job that its decisions and its events share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from labkit.testbed.run.amounts import Given
from labkit.testbed.run.job_scalings import JobScalings
from labkit.testbed.run.progress import Progress
from labkit.testbed.run.task_of_member import TaskNumbers


@dataclass(slots=True)
class RemoteJobState:
    """State of one job; `change` is held to change it, and notified of changes.

    Attributes
    ----------
    home : str
        Host of its controller; empty while it does not run.
    scalings : JobScalings
        Target and placements of its tasks.
    progress : Progress
        How far it is.
    task_numbers : TaskNumbers
        Which member is which task.
    amounts : list of Given
        Cores and memory that its tasks are to have.
    limited : list of Given, optional
        Amounts that its process was sent last; None: some members may not have them.
    generation : int
        Number of starts and ends so far; distinguishes events of an earlier start from those of the current one.
    closed : bool
        Whether no decision is carried out any more.
    dead : bool
        Whether its processes are to be ended after the loss of a host.
    """

    home: str = ""
    scalings: JobScalings = field(default_factory=JobScalings)
    progress: Progress = field(default_factory=Progress)
    task_numbers: TaskNumbers = field(default_factory=TaskNumbers)
    amounts: list[Given] = field(default_factory=list)
    limited: list[Given] | None = field(default_factory=list)
    generation: int = 0
    closed: bool = False
    dead: bool = False
    change: threading.Condition = field(default_factory=threading.Condition)
    sending: threading.Lock = field(default_factory=threading.Lock)
    """Held from a scaling's order until its number is noted."""

    def is_current(self, generation: int) -> bool:
        """Return whether events of a start count."""
        return generation == self.generation and not self.closed and not self.dead

    def new_generation(self) -> int:
        """Count a start or an end; return the new number."""
        self.generation += 1
        return self.generation
