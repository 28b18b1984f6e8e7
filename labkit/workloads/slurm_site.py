"""A made-up Slurm site: its machines, a week of its jobs, and what sacct and scontrol print of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

HEADER: Final = (
    "JobID|JobName|User|Submit|Eligible|Start|End|Elapsed|Timelimit|State|AllocTRES|ReqTRES|NNodes|NodeList|Partition|"
    "QOS|Constraints|Priority|Reservation|Reason|SubmitLine"
)
"""The columns of docs/your-slurm-cluster.md."""

WEEK_S: Final = 7 * 86_400
_ZERO_S: Final = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())
_USERS: Final = ("ada", "ben", "cho", "dia", "eli", "fay", "gus", "hal", "ivy", "jon", "kim", "lea")
_NAMES: Final = ("pretrain", "finetune", "eval", "sweep", "diffusion", "asr", "rl", "debug")


class _Kind(NamedTuple):
    """Machines of one type: how many, and what each has."""

    hosts: int
    gpus: int
    cpus: int
    memory_mb: int
    features: str


KINDS: Final = {
    "a100": _Kind(4, 8, 128, 1_024_000, "nvlink,ib"),
    "v100": _Kind(6, 4, 48, 384_000, "ib"),
    "cpu": _Kind(2, 0, 64, 256_000, ""),
}
"""A partition of the same name has the machines of each type; `v100-6` is drained, and no job runs on it."""
_DRAINED: Final = "v100-6"


@dataclass(frozen=True)
class _Job:
    """A job as it was submitted, in seconds from the first of its week."""

    id: str
    name: str
    user: str
    submit_s: int
    partition: str
    nodes: int
    gpus: int
    limit_min: int
    run_s: int
    qos: str = "normal"
    constraint: str = ""
    begin_s: int = 0
    after: str = ""
    at_most: int = 0
    state: str = "COMPLETED"
    start_s: int = -1
    end_s: int = -1
    hosts: tuple[str, ...] = ()

    @property
    def array(self) -> str:
        return self.id.partition("_")[0] if "_" in self.id else ""

    @property
    def lasts_s(self) -> int:
        return min(self.run_s, self.limit_min * 60)


def slurm_nodes() -> str:
    """Return the output of `scontrol show node` for the site."""
    return "\n".join(
        f"NodeName={name} Arch=x86_64 CoresPerSocket={has.cpus // 2}\n"
        f"   CPUAlloc=0 CPUEfctv={has.cpus} CPUTot={has.cpus} CPULoad=0.10\n"
        f"   AvailableFeatures={has.features or '(null)'}\n   ActiveFeatures={has.features or '(null)'}\n"
        f"   Gres={f'gpu:{kind}:{has.gpus}' if has.gpus else '(null)'}\n"
        f"   RealMemory={has.memory_mb} AllocMem=0 Sockets=2 Boards=1\n"
        f"   State=IDLE{'+DRAIN' * (name == _DRAINED)} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A\n"
        f"   Partitions={kind}\n" + "   Reason=ECC errors [root@2026-02-27T10:00:00]\n" * (name == _DRAINED)
        for kind, has in KINDS.items()
        for name in _hosts(kind)
    )


def slurm_export(*, n_jobs: int = 480, seed: int = 12) -> str:
    """Return the output of `sacct` for a week of the site, with faults as sites have them.

    The record was made by a loop of a few lines, not by slurmctld: jobs in order of quality of service and submission,
    on the first hosts of their partition with room; later ones may pass one that does not fit if their time limits end
    before it could start.
    """
    rng = np.random.default_rng(seed)
    jobs = _ran(_submitted(n_jobs, rng=rng))
    ends = {job.id: job.end_s for job in sorted(jobs, key=lambda job: job.end_s)}
    lines = [line for job in jobs for line in _lines(job, eligible_s=max(job.begin_s, ends.get(job.after, 0)))]
    half = len(lines) // 2
    lines[half:half] = [HEADER, *lines[half - 12 : half]]  # two halves put together, which overlap
    return "\n".join(["sacct: warning: the time zone of the controller is UTC", HEADER, *lines]) + "\n"


def _hosts(kind: str) -> list[str]:
    return [f"{kind}-{i + 1}" for i in range(KINDS[kind].hosts)]


def _submitted(n: int, *, rng: np.random.Generator) -> list[_Job]:
    """Return jobs in order of submission: more by day, sizes and durations with long tails, some arrays and chains."""
    hour_s = np.sort(rng.uniform(0, WEEK_S, 3 * n))
    by_day = rng.random(3 * n) < 0.35 + 0.65 * np.sin(np.pi * (hour_s % 86_400) / 86_400) ** 2
    jobs: list[_Job] = []
    arrivals = np.sort(rng.choice(hour_s[by_day], n, replace=False)).astype(int)
    for at, submit_s in enumerate(arrivals.tolist()):
        job = _drawn(str(4100 + at), submit_s, rng=rng)
        kind = rng.random()
        if job.partition == "cpu" or kind >= 0.16:
            jobs.append(job)
        elif kind < 0.04:  # an array of which two tasks run at once
            jobs += [_task(job, task) for task in range(int(rng.integers(3, 7)))]
        elif kind < 0.10 and jobs:  # goes on where the user's last job ends
            mine = [old.id for old in jobs if old.user == job.user and not old.array]
            jobs.append(replace(job, after=mine[-1] if mine else ""))
        elif kind < 0.12:
            jobs.append(replace(job, begin_s=submit_s + 3600 * int(rng.integers(2, 9))))
        elif kind < 0.14 and job.nodes == 1:
            jobs.append(replace(job, state="NODE_FAIL"))
        else:
            jobs.append(replace(job, state="CANCELLED by 1000", run_s=0))
    return jobs


def _drawn(number: str, submit_s: int, *, rng: np.random.Generator) -> _Job:
    partition = str(rng.choice(["a100", "v100", "cpu"], p=[0.52, 0.40, 0.08]))
    per_host = KINDS[partition].gpus
    gpus = int(rng.choice([1, 2, 4, 8, 16], p=[0.34, 0.18, 0.22, 0.20, 0.06])) if per_host else 0
    run_s = int(np.clip(rng.lognormal(np.log(5400), 1.4), 90, 43_200 if gpus == 16 else 86_400))
    asked_min = int(np.ceil(run_s / 60 * rng.uniform(1.1, 3.0) / 30) * 30)
    short = rng.random() < 0.06  # its limit ends it
    return _Job(
        id=number, name=str(rng.choice(_NAMES)), user=str(rng.choice(_USERS)), submit_s=submit_s, partition=partition,
        nodes=max(1, gpus // per_host) if per_host else 1, gpus=gpus, run_s=run_s,
        limit_min=max(1, run_s // 120) if short else asked_min, qos="high" if rng.random() < 0.08 else "normal",
        constraint="nvlink" if partition == "a100" and gpus > 1 and rng.random() < 0.3 else "",
    )  # fmt: skip


def _task(job: _Job, task: int) -> _Job:
    run_s = min(job.run_s, 3 * 3600)
    return replace(job, id=f"{job.id}_{task}", gpus=1, nodes=1, at_most=2, run_s=run_s, limit_min=240)


def _ran(jobs: list[_Job]) -> list[_Job]:
    """Return attempts in order of submission, with the moments and hosts of those that started."""
    free = {name: has.gpus or 4 for kind, has in KINDS.items() for name in _hosts(kind) if name != _DRAINED}
    waiting, running, over = sorted(jobs, key=lambda job: job.submit_s), list[_Job](), list[_Job]()
    now_s = 0
    while waiting or running:
        for job in [job for job in running if job.end_s <= now_s]:
            running.remove(job)
            over.append(job)
            _take(free, job, sign=1)
            if job.state == "NODE_FAIL":
                waiting.append(replace(job, submit_s=now_s, state="COMPLETED", start_s=-1))
        there = [job for job in waiting if job.submit_s <= now_s]
        for job in [job for job in there if not job.run_s and now_s >= job.submit_s + 600]:
            waiting.remove(job)
            over.append(replace(job, end_s=now_s))
        for job in _pass([job for job in there if job.run_s], waiting, running, free=free, now_s=now_s):
            waiting.remove(next(old for old in waiting if old.id == job.id))
            running.append(job)
        later = [job.end_s for job in running] + [max(job.submit_s, job.begin_s) for job in waiting]
        later += [job.submit_s + 600 for job in waiting if not job.run_s]
        now_s = min((at for at in later if at > now_s), default=now_s + 60)
    return sorted(over, key=lambda job: (job.submit_s, int(job.id.partition("_")[0])))


def _pass(
    order: list[_Job], waiting: list[_Job], running: list[_Job], *, free: dict[str, int], now_s: int
) -> list[_Job]:
    """Return the jobs that start now, and take their GPUs."""
    started: list[_Job] = []
    shadow_s: dict[str, int] = {}
    open_ids = {job.id for job in (*waiting, *running)}
    for job in sorted(order, key=lambda job: (job.qos != "high", job.submit_s)):
        at_once = sum(job.array == one.array for one in (*running, *started) if one.array)
        held = job.after in open_ids or job.begin_s > now_s or (job.at_most and at_once >= job.at_most)
        if held or now_s + job.limit_min * 60 > shadow_s.get(job.partition, 1 << 60):
            continue
        if hosts := _room(job, free):
            ends = now_s + (job.run_s // 2 if job.state == "NODE_FAIL" else job.lasts_s)
            state = "TIMEOUT" if job.state == "COMPLETED" and job.run_s > job.limit_min * 60 else job.state
            started.append(replace(job, start_s=now_s, end_s=ends, hosts=tuple(hosts), state=state))
            _take(free, started[-1])
        elif job.partition not in shadow_s:
            shadow_s[job.partition] = _could_start_s(job, [*running, *started], free)
    return started


def _room(job: _Job, free: dict[str, int]) -> list[str]:
    each = max(job.gpus // job.nodes, 1)
    fits = [name for name in _hosts(job.partition) if free.get(name, 0) >= each]
    return fits[: job.nodes] if len(fits) >= job.nodes else []


def _could_start_s(job: _Job, running: list[_Job], free: dict[str, int]) -> int:
    """Return when a job fits by the time limits of those that run."""
    then = dict(free)
    for one in sorted(running, key=lambda one: one.start_s + one.limit_min * 60):
        _take(then, one, sign=1)
        if _room(job, then):
            return one.start_s + one.limit_min * 60
    return 1 << 60


def _take(free: dict[str, int], job: _Job, *, sign: int = -1) -> None:
    for name in job.hosts:
        free[name] += sign * max(job.gpus // job.nodes, 1)


def _lines(job: _Job, *, eligible_s: int) -> list[str]:
    """Return the rows of an attempt: one, and of some its batch step."""
    ran, kind = job.start_s >= 0, job.partition
    cores, gb = max(4 * job.gpus, 8), max(32 * job.gpus, 16)
    asked = f"billing={cores},cpu={cores}{f',gres/gpu={job.gpus}' * bool(job.gpus)},mem={gb}G,node={job.nodes}"
    got = asked.replace("gres/gpu=", f"gres/gpu:{kind}={job.gpus},gres/gpu=") if ran else ""
    parent = f" --dependency=afterok:{job.after}" if job.after else ""
    options = f"--array=0-9%{job.at_most} " * bool(job.array) + f"-p {kind} -N {job.nodes}{parent}"
    elapsed = max(job.end_s - job.start_s, 0) if ran else 0
    name = f"{job.name}|lr={job.id[-1]}e-4" if int(job.id.partition("_")[0]) % 97 == 0 else job.name
    cells = (
        job.id, name, job.user, _clock(job.submit_s), _clock(max(job.submit_s, eligible_s)),
        _clock(job.start_s) if ran else "None", _clock(job.end_s), _span(elapsed), _span(60 * job.limit_min), job.state,
        got, asked, job.nodes, ",".join(job.hosts) if ran else "None assigned", kind, job.qos,
        job.constraint, 100_000 if job.qos == "high" else 1000, "", "None", f"sbatch {options} train.sh",
    )  # fmt: skip
    row = "|".join(str(cell) for cell in cells)
    step = f"{job.id}.batch|batch|" + row.split("|", 2)[2] if ran and job.id.endswith("00") else ""
    return [row, *filter(None, [step])]


def _clock(at_s: int) -> str:
    return datetime.fromtimestamp(_ZERO_S + at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _span(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    return f"{f'{days}-' * bool(days)}{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
