"""Published tables of jobs: the header of each, and what its columns mean; a new one is a row of `TABLES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.errors import TraceError
from labkit.core.jobs import Jobs
from labkit.workloads.readers.base import TraceTable, first_row, header_of, table_of
from labkit.workloads.readers.ledger import Read, TraceLedger
from labkit.workloads.readers.mapped import mapped
from labkit.workloads.readers.mapping import ColumnMap, named
from labkit.workloads.readers.records import table_text


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as its authors publish it.

    Attributes
    ----------
    what : str
        Whose jobs they are, for `labkit traces list --formats`.
    headers : tuple of tuple of str
        Columns by which it is recognised, of each of its versions; others may stand beside them.
    meaning : str
        What columns mean, as `--map` takes it; those that a version has not are passed over.
    source : str
        Where the columns and their units are described.
    """

    what: str
    headers: tuple[tuple[str, ...], ...]
    meaning: str
    source: str


def _columns(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


TABLES: Final = {
    "acme": PublishedTable(
        "jobs of an AcmeTrace (Seren or Kalos) of Shanghai AI Lab",
        (_columns("job_id user node_num gpu_num cpu_num type state submit_time start_time end_time queue gpu_time"),),
        "arrival=submit_time,start=start_time,end=end_time,duration=duration,gpus=gpu_num,cpus=cpu_num,nodes=node_num,"
        "memory=mem_per_pod_GB:per_node,user=user,model=type,id=job_id",
        "https://github.com/InternLM/AcmeTrace",
    ),
    "alibaba-spot": PublishedTable(
        "high-priority and spot jobs of Alibaba's trace for GFS (2026)",
        (_columns("job_name organization gpu_model cpu_request gpu_request worker_num submit_time duration job_type"),),
        "arrival=submit_time,duration=duration,gpus=gpu_request:per_instance,cpus=cpu_request:per_instance,"
        "instances=worker_num,user=organization,model=job_type,id=job_name,device_type=gpu_model",
        "https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2026",
    ),
    "alibaba-2025": PublishedTable(
        "instances of Alibaba's GPU-disaggregated recommendation models (2025)",
        (_columns("instance_sn role app_name cpu_request gpu_request memory_request creation_time scheduled_time "
                  "deletion_time"),),
        "arrival=creation_time,start=scheduled_time,end=deletion_time,gpus=gpu_request,cpus=cpu_request,"
        "memory=memory_request:gib,user=app_name,model=role,id=instance_sn",
        "https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2025",
    ),
    "elasticflow": PublishedTable(
        "jobs of an ElasticFlow trace, with their deadlines",
        (_columns("job_id submit_time iteration model_name ddl batch_size num_gpu duration"),),
        "arrival=submit_time,duration=duration,gpus=num_gpu,model=model_name,id=job_id,deadline=ddl",
        "https://github.com/pkusys/ElasticFlow",
    ),
    "tiresias": PublishedTable(
        "jobs of a trace of Tiresias' simulator",
        (_columns("job_id num_gpu submit_time iterations model_name duration interval"),
         _columns("job_id num_gpu submit_time start_time duration model_size aggr_interval model_name model_scale")),
        "arrival=submit_time,duration=duration,gpus=num_gpu,model=model_name,id=job_id",
        "https://github.com/SymbioticLab/Tiresias/tree/master/simulator",
    ),
    "lucid": PublishedTable(
        "jobs of a cluster_full_log.csv or cluster_log.csv of Lucid's simulator",
        (_columns("user vc gpu_num state submit_time duration dataset model batchsize amp"),
         _columns("user vc jobname gpu_num state submit_time duration")),
        "arrival=submit_time,duration=duration,gpus=gpu_num,cpus=cpu_num,user=vc,model=model,id=job_id",
        "https://github.com/S-Lab-System-Group/Lucid/blob/main/simulation/utils.py: columns read of both files, of "
        "Helios' clusters and of Philly alike",
    ),
}  # fmt: skip
"""Published tables in which each row is a job, by the names of their formats."""

POLLUX_COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")
"""Columns of a workload of Pollux and of Sia: when jobs arrive and what they train, but not for how long."""

POLLUX_EPOCHS: Final = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
"""Epochs after which a job of each application ends, as Pollux' simulator has them; others count as one epoch."""


def recognised(names: Iterable[str]) -> str:
    """Return the published table that has a header with these names, the one with the most columns; "" for none."""
    there = set(names)
    fits = {
        name: len(header)
        for name, table in (*TABLES.items(), ("pollux", _POLLUX))
        for header in table.headers
        if there >= set(header)
    }
    return max(fits, key=lambda name: fits[name], default="")


def published(name: str) -> Callable[[str | Path], Read]:
    """Return the reader of a published table."""

    def read(path: str | Path) -> Read:
        path = Path(path)
        content = table_text(path)
        header = first_row(content[0][: 1 << 16])
        there = {cell.strip() for cell in header_of(header, ",")}
        if not any(there >= set(columns) for columns in TABLES[name].headers):
            raise TraceError(
                f"{path}: line 1 is '{header[:60]}'; expected the columns {', '.join(TABLES[name].headers[0])}."
            )
        found = {field: source for field, source in named(TABLES[name].meaning).items() if source.column in there}
        return mapped(path, ColumnMap(",", found), content=content)

    return read


def reader_of(name: str) -> Callable[[str | Path], Jobs]:
    """Return the public reader of a published table: a function from its file to jobs."""
    read = published(name)

    def jobs(path: str | Path) -> Jobs:
        return read(path).jobs

    jobs.__doc__ = f"Return the {TABLES[name].what}."
    return jobs


def read_pollux(path: str | Path) -> Jobs:
    """Return the jobs of a workload of Pollux or Sia, whose steps are epochs and whose durations are not known."""
    return pollux(path).jobs


def pollux(path: str | Path) -> Read:
    """Return the jobs of a workload of Pollux or Sia; it tells no durations, so that there are no GPU-hours."""
    path = Path(path)
    expected = f"a workload with the columns {', '.join(POLLUX_COLUMNS)}"
    text, _ = table_text(path)
    table: TraceTable = table_of(
        path, columns=POLLUX_COLUMNS, names=("name", "application"), header=True, expected=expected, text=text
    )
    arrival_s, workers = table.numbers("time", low=0), table.counts("num_replicas")
    ids, model = table.texts("name"), table.texts("application")
    table.check()
    ledger = TraceLedger(len(table), noun="rows")
    ledger.remark(len(table), "no duration in the file: steps are the epochs of the application, for measured speeds")
    unknown = np.array([name not in POLLUX_EPOCHS for name in model])
    ledger.remark(unknown, "an application that is none of Pollux', which trains for one epoch")
    jobs = Jobs.of(
        name=path.name, id=ids, model=model, arrival_s=arrival_s - arrival_s.min(),
        total_steps=[float(POLLUX_EPOCHS.get(name, 1)) for name in model], n_workers=workers,
        worker_demand=np.tile([1.0, 1.0, 0.0], (len(table), 1)),
    )  # fmt: skip
    return Read(ledger.close(jobs), ledger)


_POLLUX: Final = PublishedTable("", (POLLUX_COLUMNS,), "", "https://github.com/siasosp23/artifacts")
