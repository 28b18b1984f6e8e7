"""Whatever the bytes, a reader answers with jobs or with a TraceError."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import TraceError
from labkit.core.jobs import Jobs
from labkit.workloads.readers import FORMATS, read, write

from .exports import PODS, SACCT

SEEDS = {
    "csv": b"arrival_s,total_steps,model,n_workers,n_ps,max_workers,sync,duration_s\n"
    b"0,10,a,1,1,4,True,\n5,3,b,2,0,2,False,7\n",
    "gavel": b"A3C\tc\td\t-n\t0\t100\t1\t1\t-1.0\t0\nCycleGAN\tc\td\t-n\t0\t90\t2\t5\t1.5\t7\n",
    "gavel-old": b"A3C\tc\t-n\t0\t100\t0.0\t1\nCycleGAN\tc\t-n\t0\t90\t7.0\t4\n",
    "shockwave": b"A3C\tc\td\t-n\t0\t100\t1\tgns\t1\t-1.0\t50\t0\nA3C\tc\td\t-n\t0\t90\t2\tstatic\t5\t1.5\t40\t7\n",
    "philly-csv": b"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n",
    "philly-log": json.dumps(
        [
            {
                "jobid": "a",
                "vc": "v",
                "submitted_time": "2017-10-07 01:00:00",
                "attempts": [
                    {
                        "start_time": "2017-10-07 01:00:00",
                        "end_time": "2017-10-07 01:01:00",
                        "detail": [{"ip": "m", "gpus": ["g"]}],
                    }
                ],
            }
        ]
    ).encode(),
    "helios": b"job_id,user,vc,gpu_num,cpu_num,submit_time,duration\n1,u,v,4,16,2020-06-09 18:41:27,249\n",
    "alibaba-2023": b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
    b"scheduled_time\np0,12000,16384,1,460,,LS,Running,0,100,5\np1,8000,100,2,1000,G2,BE,Running,3,90,\n",
    "alibaba-2020": b"j1,i1,u1,Terminated,100.0,200.0\nj2,i2,u2,Failed,50.0,\n",
    "google-2011": b"0,,7,0,,0,u,0,0,0.2,0.5,0.01,0\n10,,7,0,3,1,u,0,0,0.2,0.5,0.01,0\n"
    b"99,,7,0,3,4,u,0,0,0.2,0.5,0.01,0\n",
    "sacct": SACCT.encode(),
    "kubernetes": json.dumps({"apiVersion": "v1", "items": PODS, "kind": "List"}).encode(),
}
TASKS = b"j1,worker,2.0,Terminated,112.0,195.0,400.0,20.0,50.0,T4\nj2,ps,1.0,Failed,50.0,70.0,600.0,2.0,,\n"
PIECES = st.sampled_from(
    b'|,|\t|\n|\r|"|-|nan|inf|1e400|1e9|0|99999999999999999999|\x00|\xff|\xef\xbb\xbf|#|None|[|{|null|\x85|'
    b"1970-01-01 00:00:00".split(b"|")
) | st.binary(max_size=3)
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), PIECES), min_size=1, max_size=4)


def mutated(data, edits):
    for place, n_dropped, piece in edits:
        at = int(place * len(data))
        data = data[:at] + piece + data[at + n_dropped :]
    return data


def answer(path, format):
    """Read, or check that the refusal names the file and stays short."""
    try:
        jobs = read(path, format=format)
    except TraceError as error:
        refusal = str(error)
    else:
        assert isinstance(jobs, Jobs)
        assert jobs.faults() == []
        return
    assert str(path.parent) in refusal
    assert len(refusal) < 20_000


@pytest.mark.parametrize("format", sorted(SEEDS))
def test_the_seed_itself_is_read(tmp_path, format):
    (tmp_path / "pai_task_table.csv").write_bytes(TASKS)
    (tmp_path / "x").write_bytes(SEEDS[format])
    assert len(read(tmp_path / "x")) >= 1  # and its format is told apart
    assert len(read(tmp_path / "x", format=format)) >= 1


@pytest.mark.parametrize("format", sorted(SEEDS))
@given(edits=EDITS, sniffed=st.booleans())
def test_mutated_bytes_give_jobs_or_a_trace_error(format, edits, sniffed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        (Path(folder) / "pai_task_table.csv").write_bytes(TASKS)
        path.write_bytes(mutated(SEEDS[format], edits))
        answer(path, None if sniffed else format)


@given(edits=EDITS)
def test_mutated_task_tables_of_alibaba_give_jobs_or_a_trace_error(edits):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(SEEDS["alibaba-2020"])
        (Path(folder) / "pai_task_table.csv").write_bytes(mutated(TASKS, edits))
        answer(path, "alibaba-2020")


PARQUET = write(
    Jobs.of(arrival_s=[0, 1], total_steps=[5, 6], model=["a", "b"]), Path(tempfile.mkdtemp()) / "seed.parquet"
).read_bytes()


@given(edits=EDITS)
def test_mutated_parquet_gives_jobs_or_a_trace_error(edits):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(mutated(PARQUET, edits))
        answer(path, None)


@given(st.sampled_from(sorted(FORMATS)), st.binary(max_size=200), st.booleans())
def test_any_bytes_give_jobs_or_a_trace_error(format, data, packed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(gzip.compress(data) if packed else data)
        answer(path, format)
