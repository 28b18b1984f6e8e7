"""Where the lab's runs take place: in a simulation, or on machines. One word switches between them."""

from __future__ import annotations

import atexit
import copy
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Unpack

from labkit.core.errors import unknown
from labkit.core.jobs import Jobs
from labkit.core.protocols import Scheduler
from labkit.experiment import Experiment
from labkit.experiment.auto import AutoFields
from labkit.experiment.machines import OnMachines
from labkit.experiment.opener import LEASE_S, Preflight
from labkit.experiment.scenario import Fields
from labkit.notebook.run import LiveRun
from labkit.topology import available as clusters

if TYPE_CHECKING:
    from labkit.testbed.inventory import Inventory
    from labkit.testbed.run.retries import Retries
    from labkit.testbed.run.training import TrainingTable

N_HOSTS: Final = 3
"""Of a laptop testbed that comes up for an app, each with one GPU in name."""


class Where(Protocol):
    """A place of runs."""

    machines: bool
    """Whether jobs really train."""
    field: str
    """Heading of the form's field that says on what."""
    pause: str
    """What holding a run means."""

    def suggestions(self) -> tuple[str, ...]:
        """Return the choices of the field."""

    def experiment(
        self, trace: Jobs | str, on: str, *, seed: int, arrival_rate: float, slot_s: float | None
    ) -> Experiment:
        """Return all that defines a run but its scheduler."""

    def run(self, experiment: Experiment, *, scheduler: Scheduler | str, name: str, speedup: float) -> LiveRun:
        """Return a run that can be started."""


class Simulation:
    """Runs in virtual time, as fast as one likes."""

    machines, field, pause = False, "Cluster", "Hold the clock"

    def suggestions(self) -> tuple[str, ...]:
        """Return the clusters that have a name."""
        return tuple(clusters())

    def experiment(
        self, trace: Jobs | str, on: str, *, seed: int, arrival_rate: float, slot_s: float | None
    ) -> Experiment:
        """Return a simulation but for its scheduler."""
        return Experiment.of(trace, cluster=on, seed=seed, arrival_rate=arrival_rate, slot_s=slot_s)

    def run(self, experiment: Experiment, *, scheduler: Scheduler | str, name: str, speedup: float) -> LiveRun:
        """Return a run in a fresh simulator."""
        return LiveRun(experiment, scheduler=scheduler, name=name, speedup=speedup)


class OnHosts:
    """Runs on the hosts of an inventory, in real time.

    Where no inventory is to be found, a laptop testbed comes up, and ends with this process.
    """

    machines, field, pause = True, "Hosts", "Make no decisions; jobs train on"

    def __init__(self) -> None:
        self._inventory: Inventory | None = None

    def suggestions(self) -> tuple[str, ...]:
        """Return the inventory that is meant where none is named."""
        from labkit.testbed.upkeep import default_inventory

        found = default_inventory() or _laptop()
        return (str(found.path),)

    def experiment(
        self, trace: Jobs | str, on: str, *, seed: int, arrival_rate: float, slot_s: float | None
    ) -> Experiment:
        """Return a run on those hosts but for its scheduler."""
        from labkit.testbed.inventory import Inventory

        self._inventory = Inventory.read(on or None)
        here = self._inventory.cluster()
        return Experiment.of(trace, cluster=here, seed=seed, arrival_rate=arrival_rate, slot_s=slot_s)

    def run(self, experiment: Experiment, *, scheduler: Scheduler | str, name: str, speedup: float) -> LiveRun:  # noqa: ARG002
        """Return a run on the hosts of the last experiment; time passes there as it does."""
        assert self._inventory is not None
        return _live(Preflight(experiment, inventory=self._inventory, scheduler=copy.deepcopy(scheduler), name=name))


def live_deploy(
    jobs: Jobs | str | Path,
    *,
    inventory: Inventory | str | Path | None = None,
    scheduler: Scheduler | str,
    name: str | None = None,
    runs: str | Path = "runs",
    training: TrainingTable | None = None,
    lease_s: float = LEASE_S,
    retries: Retries | None = None,
    **fields: Unpack[Fields],
) -> LiveRun:
    """Return a run on a testbed that can be watched and steered; begin it with `start`.

    Parameters and errors are those of `labkit.deploy`. Where the notebook dies, `labkit.attach`
    continues the run.
    """
    opener = Preflight.of(
        jobs, inventory=inventory, scheduler=copy.deepcopy(scheduler), name=name, runs=runs, training=training,
        lease_s=lease_s, retries=retries, **fields,
    )  # fmt: skip
    return _live(opener)


def live_auto(model: str, *, steps: int, **options: Unpack[AutoFields]) -> LiveRun:
    """Return a run of one job on this machine that configures itself; begin it with `start`.

    Parameters and errors are those of `labkit.auto`.
    """
    from labkit.experiment.auto import opener_of

    return _live(opener_of(model, steps=steps, **options))


def _live(opener: Preflight) -> LiveRun:
    backend = OnMachines(opener)
    return LiveRun(opener.experiment, scheduler=opener.scheduler, name=opener.name, backend=backend)


PLACES: Final[dict[str, type[Simulation] | type[OnHosts]]] = {"simulation": Simulation, "testbed": OnHosts}


def place(name: str) -> Where:
    """Return a place by its name; InputError if it is neither "simulation" nor "testbed"."""
    if name not in PLACES:
        raise unknown("place of runs", name, PLACES)
    return PLACES[name]()


def _laptop() -> Inventory:
    """Start a laptop testbed that ends with this process."""
    from labkit.testbed.laptop import Bed

    bed = Bed.up(N_HOSTS, gpus=1)
    atexit.register(bed.down)
    return bed.inventory
