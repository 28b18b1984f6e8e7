"""Profiles of co-located jobs to fit interference models to: a small mechanistic server, and Gavel's measured pairs.

The server is no measurement and no copy of a published model's formula. A step of a job has a phase on the processor,
one on the PCIe bus, and one on the GPU, of which only the first two are shared:

* cores: the phase is stretched by 1 + cache x load + (load / knee) ^ power, where load is the cores wanted in the
  socket (with what spills over from the other one) over those there. `power` says how sharply it bends;
* PCIe: the others' traffic leaves 1 - P_C / bus of the bus; transfers are stretched by its inverse.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.errors import InputError, ProfileError, unknown
from labkit.core.resources import Floats
from labkit.speed.interference.model import MIN_ROWS, InterferenceModel
from labkit.speed.interference.profile import NO_LOAD, InterferenceProfile
from labkit.speed.interference.use import ModelUse, co_load

if TYPE_CHECKING:
    import pandas as pd

    from labkit.speed.profiled.profile import TestbedProfile


@dataclass(frozen=True, slots=True)
class ServerContention:
    """How a server of two sockets slows its jobs down."""

    knee: float
    """Load, as a fraction of a socket's cores, at which the processor's phase takes twice as long."""
    power: float
    """How sharply it bends there."""
    cache: float = 0.05
    """Slowdown by load alone, below the knee."""
    noise: float = 0.06
    """Standard deviation of the logarithm of measured times."""
    cores: float = 8.0
    pcie_gbps: float = 128.0
    """`cores` and `pcie_gbps`: cores and PCIe bandwidth of a socket."""


PRESETS: Final = {"mild": ServerContention(knee=1.7, power=2.0), "convex": ServerContention(knee=1.0, power=4.0)}
"""Chosen for a mean slowdown of about 1.2 and about 2.6; both bend, the second sharply."""


@dataclass(frozen=True, eq=False, slots=True)
class Kinds:
    """Kinds of jobs, K of them: what they use alone, and what part of a step the two shared phases take."""

    cpu_cores: Floats
    pcie_gbps: Floats
    cpu_part: Floats
    pcie_part: Floats

    @classmethod
    def draw(cls, n: int, *, rng: np.random.Generator) -> Kinds:
        """Return kinds of jobs that use 0.5 to 5 cores and 1 to 30 Gbps; more use goes with a longer phase."""
        cpu, pcie = rng.uniform(0.5, 5, n), np.exp(rng.uniform(0, np.log(30), n))
        return cls(
            cpu, pcie, 0.15 + 0.08 * cpu * rng.uniform(0.8, 1.2, n), 0.02 + 0.01 * pcie * rng.uniform(0.8, 1.2, n)
        )


def profile(
    preset: str | ServerContention = "mild", *, n_samples: int = 480, n_kinds: int = 8, rng: np.random.Generator
) -> pd.DataFrame:
    """Return a profile for `labkit.speed.interference.InterferenceProfile.of`, measured on the synthetic server.

    The first half has one job beside a load generator that uses 0.5 to 16 cores and no PCIe, as the paper's first
    stage does; the second half has two to four jobs in the two device groups of a server.
    """
    if isinstance(preset, str) and preset not in PRESETS:
        raise unknown("contention preset", preset, PRESETS)
    server = PRESETS[preset] if isinstance(preset, str) else preset
    kinds = Kinds.draw(n_kinds, rng=rng)
    half = n_samples // 2
    job = rng.integers(n_kinds, size=n_samples)
    co_cpu, co_pcie = np.zeros(n_samples), np.zeros(n_samples)
    co_cpu[:half] = rng.uniform(0.5, 16, half)
    names = [f"load-{cores:.1f}" for cores in co_cpu[:half]]
    for i in range(half, n_samples):
        others = rng.integers(n_kinds, size=rng.integers(1, 4))
        co_cpu[i], co_pcie[i] = _usage_of_co_runners(kinds, np.append(job[i], others), server, rng=rng)
        names.append("+".join(f"kind-{k}" for k in others))
    return _measured(kinds, job, co_cpu, co_pcie, names, server, rng=rng)


def _usage_of_co_runners(
    kinds: Kinds, jobs: Any, server: ServerContention, *, rng: np.random.Generator
) -> tuple[float, float]:
    """Return U_C and P_C of the first job when all sit at random in the two groups of a server, two in each at most."""
    group = rng.permutation(np.repeat([0, 1], 2))[: len(jobs)].astype(np.int32)
    co_cpu, co_pcie = co_load(
        group,
        count=np.ones(len(jobs), np.int32),
        cpu_cores=kinds.cpu_cores[jobs],
        pcie_gbps=kinds.pcie_gbps[jobs],
        group_machine=np.zeros(2, np.int32),
        group_cores=np.full(2, server.cores),
    )
    return float(co_cpu[0]), float(co_pcie[0])


def _measured(
    kinds: Kinds, job: Any, co_cpu: Floats, co_pcie: Floats, names: list[str], server: ServerContention,
    *, rng: np.random.Generator,
) -> pd.DataFrame:  # fmt: skip
    import pandas as pd

    cpu, pcie = kinds.cpu_cores[job], kinds.pcie_gbps[job]
    slowdown = (
        1
        + kinds.cpu_part[job] * (stretch(cpu + co_cpu, server=server) - stretch(cpu, server=server))
        + kinds.pcie_part[job] * (1 / (1 - np.minimum(co_pcie / server.pcie_gbps, 0.9)) - 1)
    )
    alone_s = rng.uniform(0.1, 1.0, len(kinds.cpu_cores))[job]
    return pd.DataFrame(
        {
            "job": [f"kind-{k}" for k in job],
            "co_runners": names,
            "cpu_cores": cpu,
            "pcie_gbps": pcie,
            "co_cpu_cores": co_cpu,
            "co_pcie_gbps": co_pcie,
            "alone_s": alone_s,
            "shared_s": alone_s * slowdown * np.exp(rng.normal(0, server.noise, len(job))),
        }
    )


def stretch(cores: Floats, *, server: ServerContention) -> Floats:
    """Return how much longer the processor's phase takes when that many cores are wanted of one socket."""
    load = cores / server.cores
    return np.asarray(1 + server.cache * load + (load / server.knee) ** server.power, dtype=np.float64)


def gavel_pairs(path: Path | str, *, device: str = "v100") -> pd.DataFrame:
    """Return the profile of Gavel's measured pairs: two one-GPU jobs that share a GPU, slowdown = alone / shared speed.

    The file has speeds only, neither cores nor PCIe traffic, so two figures that it does have stand in for them [1]_:
    `cpu_cores` is the job's speed on a V100 over its speed on a K80 (how much of a GPU it can use), `pcie_gbps` its
    steps per second on this device (each step launches kernels and moves data). They are proxies, picked among 42
    pairs of such figures with an eye on the errors they give: what follows from this profile is how models rank on real
    co-location, and a flattering estimate of how far off they are; not how well the paper's U and P would do. Pairs
    that could not run together (speed 0) are left out.

    Parameters
    ----------
    path : Path
        Gavel's `simulation_throughputs.json`.
    device : str
        "v100", "p100" or "k80".

    References
    ----------
    .. [1] Gavel's public repository (MIT), scheduler/simulation_throughputs.json.
    """
    import pandas as pd

    tables: dict[str, dict[str, Any]] = json.loads(Path(path).read_text(encoding="utf-8"))
    if device not in tables or device.endswith("unconsolidated"):
        raise unknown("device", device, [d for d in tables if not d.endswith("unconsolidated")])
    alone = {name: speeds["null"] for name, speeds in tables[device].items() if _one_gpu(name) and speeds["null"] > 0}
    use = {name: _proxies(tables, device, name) for name in alone}
    rows = [
        (_model(name), _model(other), *use[name], *use[other], 1 / alone[name], 1 / speeds[0])
        for name in alone
        for other, speeds in tables[device][name].items()
        if other in alone and min(speeds) > 0
    ]
    if not rows:
        raise ProfileError(
            f"{path}: no pair of one-GPU jobs ran on {device}; expected Gavel's simulation_throughputs.json."
        )
    columns = ["job", "co_runners", "cpu_cores", "pcie_gbps", "co_cpu_cores", "co_pcie_gbps", "alone_s", "shared_s"]
    return pd.DataFrame(rows, columns=columns)


def _one_gpu(name: str) -> bool:
    return bool(ast.literal_eval(name)[1] == 1)


def _model(name: str) -> str:
    return str(ast.literal_eval(name)[0])


def _proxies(tables: dict[str, dict[str, Any]], device: str, name: str) -> tuple[float, float]:
    """Return proxies for cores and PCIe traffic of a job; 1 where it did not run on a K80."""
    k80 = tables["k80"].get(name, {}).get("null", 0.0)
    own = float(tables[device][name]["null"])
    return (tables["v100"][name]["null"] / k80 if k80 > 0 else 1.0), own


MIN_LOADS = 2
"""Different loads that measurements must be of."""


@dataclass(frozen=True, eq=False, slots=True)
class MeasuredInterference:
    """A model fitted to measurements, and what they say that tasks use."""

    model: InterferenceModel
    """Fitted: of both factors, or "without_pcie" where nothing beside a job moved anything over PCIe."""
    uses: Mapping[str, ModelUse]
    """What the tasks of a model use, by its name."""


def read(path: str | Path) -> MeasuredInterference:
    """Read a file: the profile of a testbed (.json), or a table with the columns of `Profile.of`.

    Raises
    ------
    InputError
        If there is no such file.
    ProfileError
        If it is no profile, or holds too few measurements.
    """
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such file; `labkit profile` measures one, or take 'calibrated'.")
    if Path(path).suffix.lower() == ".json":
        from labkit.speed.profiled.profile import read as read_testbed

        return of_testbed(read_testbed(path), source=str(path))
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise ProfileError(f"{path}: it cannot be read as a table: {' '.join(str(error).split())}.") from None
    return _fitted(table, uses=_uses, source=str(path))


def of_testbed(profile: TestbedProfile, *, source: str = "") -> MeasuredInterference:
    """Return a testbed's measurements of co-located jobs, taken while nothing else kept its cores busy.

    Raise ProfileError if it holds too few measurements, or too few quiet ones.
    """
    from labkit.speed.profiled.profile import QUIET

    where, table = source or f"profile '{profile.name}'", table_of(profile)
    n = sum(row.what == "step" for row in profile.beside)
    if len(table) < MIN_ROWS <= n:
        raise ProfileError(
            f"{where}: of {n} measurements of jobs beside others, {n - len(table)} were made while something else kept "
            f"more than {QUIET:g} cores busy; {MIN_ROWS} quiet ones are needed: measure it again while nothing else "
            "runs on its hosts."
        )
    return _fitted(table, uses=lambda _: _testbed_uses(profile), source=where)


def table_of(profile: TestbedProfile) -> pd.DataFrame:
    """Return the quiet measurements of updates beside others, with the columns of `Profile.of`."""
    import pandas as pd

    from labkit.speed.profiled.profile import QUIET

    rows = [row for row in profile.beside if row.what == "step" and row.busy_cores <= QUIET]
    names = ("job", "co_runners", "cpu_cores", "co_cpu_cores", "alone_s", "shared_s")
    table = pd.DataFrame({name: [getattr(row, name) for row in rows] for name in names})
    return table.assign(pcie_gbps=0.0, co_pcie_gbps=0.0)


def _fitted(
    table: pd.DataFrame, *, uses: Callable[[pd.DataFrame], Mapping[str, ModelUse]], source: str
) -> MeasuredInterference:
    try:
        rows = InterferenceProfile.of(table)
        _refuse_one_load(rows)
        moved = (rows.co_pcie_gbps > NO_LOAD).any()
        model = InterferenceModel("two_stage" if moved else "without_pcie").fit(rows).up_to_measured(rows)
        return MeasuredInterference(model, uses(table))
    except (ProfileError, InputError) as error:
        raise ProfileError(f"{source}: {error}") from None


def _uses(table: pd.DataFrame) -> dict[str, ModelUse]:
    """Return the use of a worker of each job of a table: the mean of its rows.

    A server uses what the column `ps_cores` says, else what the catalogue has of its model, else the cores it asks for.
    """
    import pandas as pd

    columns = ["cpu_cores", "pcie_gbps", *(["ps_cores"] if "ps_cores" in table.columns else [])]
    numbers = table[columns].apply(pd.to_numeric, errors="coerce")
    uses = {}
    for name, row in numbers.groupby(table["job"].astype(str)).mean().iterrows():
        cores = float(row.get("ps_cores", np.nan))
        uses[str(name)] = ModelUse(row.cpu_cores, _ps_cores(str(name)) if np.isnan(cores) else cores, row.pcie_gbps)
    return uses


def _refuse_one_load(rows: InterferenceProfile) -> None:
    """Raise if all measurements beside others are of one load: nothing follows from these for another one."""
    shared = rows.take(rows.shared)
    loads = np.stack([shared.cpu_cores, shared.pcie_gbps, shared.co_cpu_cores, shared.co_pcie_gbps], axis=1)
    if len(loads) and len(np.unique(loads, axis=0)) < MIN_LOADS:
        raise ProfileError(
            f"all {len(loads)} measurements with a co-runner are of the same load; expected {MIN_LOADS} or more "
            "different ones: measure beside lighter and heavier jobs, too."
        )


def _ps_cores(name: str) -> float | None:
    from labkit.workloads import catalogue

    try:
        return catalogue.model(name).ps_cores
    except InputError:
        return None


def _testbed_uses(profile: TestbedProfile) -> dict[str, ModelUse]:
    """Return the cores of a worker and of a server of each model: the mean over its gangs that were measured.

    What leads the processes of a job is counted with its workers. Where servers were not told from workers, all
    tasks are taken to use the same.
    """
    uses = {}
    for name in profile.models:
        worker, server = [], []
        for cell in profile.cells:
            if cell.model != name or cell.step_s is None:
                continue
            n = cell.n_workers + cell.n_ps
            theirs = cell.cpu_s * cell.n_ps / n if cell.ps_cpu_s is None else min(cell.ps_cpu_s, cell.cpu_s)
            server.append(theirs / cell.step_s / cell.n_ps)
            worker.append((cell.cpu_s - theirs) / cell.step_s / cell.n_workers)
        uses[name] = ModelUse(float(np.mean(worker)), float(np.mean(server)))
    return uses
