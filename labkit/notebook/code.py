"""A run as code: the Python and the command line that do the same."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

KNOWN_HERE = "jobs"
"""What a trace is called that was given as jobs, not as a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a run is made of, by name.

    Attributes
    ----------
    trace : str
        Path of a file; empty: jobs that only the notebook has.
    cluster, scheduler : str
        As `labkit.topology` and `labkit.schedulers` take them.
    own : bool
        The scheduler is an object of the notebook, named `scheduler` there.
    seed : int
        Of the simulator.
    machines : bool
        Jobs really train, on the hosts of the inventory that `cluster` names.
    """

    trace: str
    cluster: str
    scheduler: str
    own: bool = False
    seed: int = 0
    machines: bool = False

    def python(self) -> str:
        """Return the run as Python.

        >>> print(Choice(trace="a.csv", cluster="demo", scheduler="srtf").python())
        import labkit
        <BLANKLINE>
        record = labkit.simulate("a.csv", cluster="demo", scheduler="srtf", seed=0)
        record.summary
        """
        trace = _quoted(self.trace) if self.trace else KNOWN_HERE
        scheduler = self.scheduler if self.own else _quoted(self.scheduler)
        verb, on = ("deploy", "inventory") if self.machines else ("simulate", "cluster")
        seed = "" if self.machines else f", seed={self.seed}"
        call = f"labkit.{verb}({trace}, {on}={_quoted(self.cluster)}, scheduler={scheduler}{seed})"
        return f"import labkit\n\nrecord = {call}\nrecord.summary"

    def shell(self) -> str:
        """Return the run as a command, or why there is none.

        >>> Choice(trace="a b.csv", cluster="demo", scheduler="srtf", seed=1).shell()
        "labkit compare 'a b.csv' --schedulers srtf --cluster demo --seed 1"
        >>> Choice(trace="a.csv", cluster="hosts.toml", scheduler="srtf", machines=True).shell()
        'labkit deploy a.csv --scheduler srtf --inventory hosts.toml'
        """
        if not self.trace:
            return "# the command line needs the trace as a file"
        if self.own:
            return "# the command line needs the scheduler as a file in labkit/schedulers"
        if self.machines:
            return shlex.join(
                ["labkit", "deploy", self.trace, "--scheduler", self.scheduler, "--inventory", self.cluster]
            )
        words = ["labkit", "compare", self.trace, "--schedulers", self.scheduler, "--cluster", self.cluster]
        return shlex.join([*words, "--seed", str(self.seed)])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
