"""Runs on disk: what was written comes back, a crash costs at most a second, and damage is named."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.core.events import Events, events, explained, from_frame, to_frame
from labkit.core.jobs import Jobs
from labkit.core.placement import Reason
from labkit.results import RunInfo, RunState, RunWriter, files, free_id, load, run_ids
from labkit.results.files import read_cluster, write_cluster, writer_of
from labkit.results.store import RunTail, find, refuse_taken
from labkit.topology import no_network
from labkit.topology.inventory import Host, cluster_of

from .logs import TWO_MACHINES, by_hand, random_log, three_jobs


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def begin(root: Path, *, run: str = "r1", clock: Clock | None = None, jobs: Jobs | None = None) -> RunWriter:
    info = RunInfo(run=run, scheduler="drf", seed=7, config={"load": 2.0, "slot_s": 600}, versions={"numpy": "2"})
    return RunWriter.create(root, info=info, jobs=jobs or three_jobs(), cluster=TWO_MACHINES, clock=clock or Clock())


def same(a: Events, b: Events) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(a[name], b[name], equal_nan=a.dtype[name].kind == "f") for name in a.dtype.names or ()
    )


def test_a_run_comes_back_as_it_was_written(tmp_path):
    with begin(tmp_path) as writer:
        writer.append(by_hand())
    record = load(tmp_path / "r1")
    assert same(record.events, by_hand())
    assert record.info == replace(writer.info, wall_s=0.0)
    assert record.info.state is RunState.DONE
    assert record.jobs.to_frame().equals(three_jobs().to_frame())
    assert record.jobs.name == "three jobs"
    assert record.cluster.machines == TWO_MACHINES.machines
    for column in ("group_machine", "group_type", "capacity", "group_pcie_gbps", "machine_socket_gbps", "partition"):
        np.testing.assert_array_equal(getattr(record.cluster, column), getattr(TWO_MACHINES, column))
    assert load("r1", runs=tmp_path).summary["mean_jct_s"] == 45


def test_a_run_of_before_there_were_pairs_can_still_be_read(tmp_path):
    import pyarrow.parquet as pq

    with begin(tmp_path) as writer:
        writer.append(by_hand())
    (part,) = writer.folder.glob("events-*")
    pq.write_table(pq.read_table(part).drop_columns(["partner"]), part)
    assert same(load(tmp_path / "r1").events, by_hand())
    assert same(from_frame(to_frame(by_hand()).drop(columns="partner")), by_hand())


def test_parts_are_written_at_most_once_a_second_and_joined_in_order(tmp_path):
    clock = Clock()
    rows, jobs = random_log(3)
    writer = begin(tmp_path, jobs=jobs, clock=clock)
    for i, row in enumerate(np.array_split(rows, len(rows))):
        clock.now_s = i * 0.3
        writer.append(row)
    before = sorted(path.name for path in writer.folder.glob("events-*"))
    assert 1 < len(before) <= clock.now_s + 1
    assert same(load(tmp_path / "r1").events, rows[: len(load(tmp_path / "r1").events)])
    writer.close()
    assert same(load(tmp_path / "r1").events, rows)


def test_more_than_ten_parts_keep_their_order(tmp_path):
    rows, jobs = random_log(4)
    writer = begin(tmp_path, jobs=jobs)
    for row in np.array_split(rows, 13):
        writer.append(row)
        writer.flush()
    assert same(load(tmp_path / "r1").events, rows)


def test_a_run_that_has_ended_has_one_event_file(tmp_path):
    rows, jobs = random_log(5)
    writer = begin(tmp_path, jobs=jobs)
    for row in np.array_split(rows[:20], 5):
        writer.append(row)
        writer.flush()
    left_over = (writer.folder / "events-00002.parquet").read_bytes()
    writer.close(RunState.STOPPED)
    assert [path.name for path in writer.folder.glob("events-*")] == ["events-00000-00004.parquet"]
    (writer.folder / "events-00002.parquet").write_bytes(left_over)  # as after a crash while parts were removed
    assert same(load(tmp_path / "r1").events, rows[:20])
    with RunWriter.attach(writer.folder, clock=Clock()) as again:
        again.append(rows[20:])
    assert (writer.folder / "events-00000-00005.parquet").exists()
    assert same(load(tmp_path / "r1").events, rows)


def test_a_running_run_can_be_read(tmp_path):
    writer = begin(tmp_path)
    writer.append(by_hand()[:5])
    writer.flush()
    record = load(tmp_path / "r1")
    assert record.info.state is RunState.RUNNING
    assert same(record.events, by_hand()[:5])


def test_unfinished_files_of_a_dead_writer_do_not_count(tmp_path):
    with begin(tmp_path) as writer:
        writer.append(by_hand())
    (writer.folder / ".events-00001.parquet.99.tmp").write_bytes(b"PAR1 half of")
    assert same(load(tmp_path / "r1").events, by_hand())


def test_attach_goes_on_where_the_writer_died(tmp_path):
    rows = by_hand()
    first = begin(tmp_path)
    first.append(rows[:9])
    first.flush()
    del first
    with RunWriter.attach(tmp_path / "r1", clock=Clock()) as second:
        second.append(rows[9:])
    assert same(load(tmp_path / "r1").events, rows)
    assert load(tmp_path / "r1").info.state is RunState.DONE


WRITE = """
import sys, time
sys.path.insert(0, sys.argv[2])
import logs
from labkit.results import RunInfo, RunWriter
w = RunWriter.create(sys.argv[1], info=RunInfo(run=sys.argv[3], scheduler="x"), jobs=logs.three_jobs(),
                     cluster=logs.TWO_MACHINES, numbered=True)
w.append(logs.by_hand()[:10]); w.flush()
print(w.info.run, flush=True)
import os
if "fork" in sys.argv:
    child = os.fork()
    if not child:
        os.close(1)
        time.sleep(300)
    print(child, flush=True)
sys.stdin.read()
"""


def writing(root: Path, *words: str) -> subprocess.Popen[str]:
    """Return a process that writes a run until its input ends."""
    argv = [sys.executable, "-c", WRITE, str(root), str(Path(__file__).parent), *words]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told_by(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_run_has_one_writer_which_is_named_also_while_it_is_stopped_and_no_more_once_it_was_killed(tmp_path):
    with writing(tmp_path, "r") as process:
        assert told_by(process) == "r"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(InputError, match=rf"being written by process {process.pid} on .*: labkit watch .*/r\."):
            RunWriter.attach(tmp_path / "r")
        assert (writer_of(tmp_path / "r") or {})["pid"] == process.pid
        assert load(tmp_path / "r").info.state is RunState.RUNNING, "it can be read"
        process.kill()
        process.wait()
        assert writer_of(tmp_path / "r") is None
        with RunWriter.attach(tmp_path / "r"), pytest.raises(InputError, match=f"by process {os.getpid()} "):
            RunWriter.attach(tmp_path / "r")
    RunWriter.attach(tmp_path / "r").let_go()


def test_a_child_that_outlives_a_killed_writer_does_not_keep_others_from_going_on(tmp_path):
    with writing(tmp_path, "r", "fork") as process:
        told_by(process)
        child = int(told_by(process))
        try:
            process.kill()
            process.wait()
            RunWriter.attach(tmp_path / "r").let_go()
        finally:
            os.kill(child, signal.SIGKILL)


def test_runs_that_begin_at_once_take_ids_of_their_own(tmp_path):
    processes = [writing(tmp_path, "same") for _ in range(4)]
    ids = sorted(told_by(each) for each in processes)
    for each in processes:
        each.communicate()
    assert ids == ["same", "same-2", "same-3", "same-4"] == run_ids(tmp_path)


def test_a_day_of_seconds_is_a_hundred_files_and_can_be_read_and_followed_at_any_time(tmp_path):
    rows = np.tile(by_hand(), 200)[:1100]
    writer, most = begin(tmp_path), 0
    tail, followed = RunTail(writer.folder, jobs=three_jobs(), cluster=TWO_MACHINES), []
    for i, row in enumerate(np.array_split(rows, 1100)):
        writer.append(row)
        writer.flush()
        if i % 91 == 0:
            most = max(most, len(list(writer.folder.glob("events-*"))))
            followed.append(tail.news())
    assert same(np.concatenate([*followed, tail.news()]), rows)
    assert not len(tail.news())
    assert most <= 31 + 31 + 2
    del writer
    assert same(load(tmp_path / "r1").events, rows)
    RunWriter.attach(tmp_path / "r1", clock=Clock()).close()
    assert [path.name for path in (tmp_path / "r1").glob("events-*")] == ["events-00000-01099.parquet"]
    assert same(load(tmp_path / "r1").events, rows)


def test_a_run_whose_files_are_being_joined_can_be_read(tmp_path, monkeypatch):
    writer = begin(tmp_path)
    for row in np.array_split(by_hand(), 5):
        writer.append(row)
        writer.flush()
    read, joined = files.read_events, []

    def join_first(path: Path) -> Events:
        if not joined:
            joined.append(True)
            writer._join()
        return read(path)

    monkeypatch.setattr(files, "read_events", join_first)
    assert same(load(tmp_path / "r1").events, by_hand())


def test_a_killed_writer_loses_at_most_what_was_not_flushed(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        import logs
        from labkit.results import RunInfo, RunWriter
        w = RunWriter.create(sys.argv[1], info=RunInfo(run="k", scheduler="x"), jobs=logs.three_jobs(),
                             cluster=logs.TWO_MACHINES)
        w.append(logs.by_hand()[:10]); w.flush(); w.append(logs.by_hand()[10:])
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert same(load("k", runs=tmp_path).events, by_hand()[:10])


@pytest.mark.parametrize(("raised", "state"), [(KeyboardInterrupt, RunState.STOPPED), (ValueError, RunState.FAILED)])
def test_how_a_block_ends_is_noted_and_its_events_are_kept(tmp_path, raised, state):
    def run() -> None:
        with begin(tmp_path) as writer:
            writer.append(by_hand())
            raise raised

    with pytest.raises(raised):
        run()
    record = load(tmp_path / "r1")
    assert record.info.state is state
    assert same(record.events, by_hand())


def test_an_unknown_run_names_the_nearest(tmp_path):
    with pytest.raises(InputError, match="there are no runs in"):
        load("fifo-1", runs=tmp_path)
    begin(tmp_path, run="fifo-1").close()
    with pytest.raises(InputError, match=r"unknown run 'fifo1'\. Did you mean 'fifo-1'"):
        load("fifo1", runs=tmp_path)
    with pytest.raises(InputError, match="Did you mean 'fifo-1'"):
        load(tmp_path / "fifo-2")


def test_a_truncated_part_is_named_with_the_remedy(tmp_path):
    with begin(tmp_path) as writer:
        writer.append(by_hand())
    part = writer.folder / "events-00000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"events-00000\.parquet cannot be read as Parquet .* cut short or damaged"):
        load(tmp_path / "r1")


def test_a_gap_between_parts_is_told(tmp_path):
    writer = begin(tmp_path)
    for row in np.array_split(by_hand(), 3):
        writer.append(row)
        writer.flush()
    (writer.folder / "events-00001.parquet").unlink()
    with pytest.raises(InputError, match=r"events-00001\.parquet is missing, though later parts are there"):
        load(tmp_path / "r1")


def test_the_links_of_a_single_switch_are_kept(tmp_path):
    host = Host(name="h0", gpus=2, device_type="v100", cpus=8, memory_gb=64)
    hosts = [replace(host, name=f"h{i}", link_gbps=gbps) for i, gbps in enumerate((1, 25.5, 10))]
    cluster = cluster_of(hosts, name="hosts")
    write_cluster(tmp_path / "cluster.json", cluster)
    kept = read_cluster(tmp_path / "cluster.json").network
    assert kept is not None
    assert cluster.network is not None
    for name in ("nodes", "tier", "link_from", "link_to", "link_gbps"):
        assert list(getattr(kept, name)) == list(getattr(cluster.network, name))
    assert kept.route == cluster.network.route


@pytest.mark.parametrize("field", ["features", "partitions", "gpu_kinds"])
@pytest.mark.parametrize("odd", [None, "a\x1b[2J", 1e308, [1]])
def test_names_of_machines_and_kinds_that_are_no_object_are_refused(tmp_path, field, odd):
    path = tmp_path / "cluster.json"
    write_cluster(path, no_network(3))
    path.write_text(json.dumps({**json.loads(path.read_text()), field: odd}))
    with pytest.raises(InputError, match=rf"does not describe a cluster: {field} is .*; expected an object") as error:
        read_cluster(path)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("links", [[1.0], [1, 2, "x"], [1, 0, 1], [1, 1, float("inf")], 7, {"a": 1}])
def test_odd_links_are_refused(tmp_path, links):
    path = tmp_path / "cluster.json"
    write_cluster(path, no_network(3))
    path.write_text(json.dumps({**json.loads(path.read_text()), "links_gbps": links}))
    with pytest.raises(InputError, match="does not describe a cluster: links_gbps is no list of 3 bandwidths above 0"):
        read_cluster(path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.json", "{", "is not JSON"),
        ("run.json", "[]", "holds a list; expected an object"),
        ("run.json", '{"run": "r1"}', "does not describe a run"),
        ("cluster.json", '{"name": "x"}', "does not describe a cluster"),
        ("cluster.json", None, "is missing; the folder is not a whole run"),
        ("jobs.parquet", None, "is missing; the folder is not a whole run"),
        ("jobs.parquet", "\0\1\2", "cannot be read as Parquet"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text, said):
    begin(tmp_path).close()
    path = tmp_path / "r1" / name
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=f"{name}.*{said}"):
        load(tmp_path / "r1")


def test_a_run_is_never_written_over_another(tmp_path):
    begin(tmp_path).close()
    with pytest.raises(InputError, match="run 'r1' is already in"):
        begin(tmp_path)
    assert free_id(tmp_path, "r1") == "r1-2"
    assert free_id(tmp_path, "r2") == "r2"
    assert run_ids(tmp_path) == ["r1"]


@pytest.mark.parametrize("run", ["../x", "", ".hidden", "a b", "a/b"])
def test_a_run_id_that_cannot_name_a_folder_is_refused(tmp_path, run):
    with pytest.raises(InputError, match="cannot name a folder"):
        begin(tmp_path, run=run)
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_beginning_cannot_be_written_leaves_no_folder(tmp_path, monkeypatch):
    def full(path: Path, _: object) -> None:
        path.write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_info", full)
    with pytest.raises(OSError, match="No space left"):
        begin(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_run_json_can_be_read_by_anyone(tmp_path):
    with begin(tmp_path):
        pass
    row = json.loads((tmp_path / "r1" / "run.json").read_text())
    assert row["config"] == {"load": 2.0, "slot_s": 600}
    assert row["state"] == "done"


def test_event_parts_have_names_not_codes(tmp_path):
    import pandas as pd

    with begin(tmp_path) as writer:
        writer.append(by_hand())
    frame = pd.read_parquet(writer.folder / "events-00000.parquet")
    assert frame["kind"].iloc[0] == "arrived"
    assert frame["role"].isna().iloc[0]


def test_an_event_of_a_newer_labkit_is_refused_by_name(tmp_path):
    import pandas as pd

    with begin(tmp_path) as writer:
        writer.append(by_hand())
    part = writer.folder / "events-00000.parquet"
    frame = pd.read_parquet(part)
    frame.assign(kind=frame["kind"].astype(str).replace("paused", "hibernated")).to_parquet(part)
    with pytest.raises(InputError, match="kind 'hibernated' is not known; it is of a newer labkit"):
        load(tmp_path / "r1")
    frame.drop(columns="speed").to_parquet(part)
    with pytest.raises(InputError, match="column 'speed' is missing"):
        load(tmp_path / "r1")


def test_a_full_disk_leaves_no_half_written_file(tmp_path, monkeypatch):
    writer = begin(tmp_path)
    writer.append(by_hand())

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    assert not list(writer.folder.glob("*events*"))
    assert same(load(tmp_path / "r1").events, events())


def why(job: int, number: int, time_s: float) -> Events:
    return explained([Reason(job, "", 3.0)], [number], time_s=time_s)


def test_reasons_come_back_with_their_run_and_are_on_disk_before_the_events_that_name_them(tmp_path):
    clock = Clock()
    writer = begin(tmp_path, clock=clock)
    writer.reasons.append("it is slow")
    writer.append(why(1, 0, 5.0))
    clock.now_s = 2.0
    writer.append(why(2, 0, 6.0))
    record = load(tmp_path / "r1")
    assert record.reasons == ["it is slow"]
    assert record.decisions.to_dict("list") == {
        "time_s": [5.0, 6.0], "job": [str(record.jobs.id[1]), str(record.jobs.id[2])], "reason": ["it is slow"] * 2,
        "predicted_steps_per_s": [3.0, 3.0],
    }  # fmt: skip
    writer.close(RunState.STOPPED)
    with RunWriter.attach(tmp_path / "r1") as again:
        assert again.reasons == ["it is slow"]
        again.reasons.append("it is hot")
        again.append(why(0, 1, 7.0))
    assert load(tmp_path / "r1").decisions["reason"].tolist() == ["it is slow", "it is slow", "it is hot"]


def test_a_run_without_reasons_has_none_and_damage_is_named(tmp_path):
    with begin(tmp_path) as writer:
        writer.append(by_hand())
    assert load(tmp_path / "r1").reasons == []
    assert load(tmp_path / "r1").decisions.empty
    (tmp_path / "r1" / "reasons.json").write_text("[1]")
    with pytest.raises(InputError, match=r"reasons.json does not hold reasons; expected a list of texts"):
        load(tmp_path / "r1")
    (tmp_path / "r1" / "reasons.json").write_text("[")
    with pytest.raises(InputError, match=r"reasons.json is not JSON"):
        load(tmp_path / "r1")
    (tmp_path / "r1" / "reasons.json").unlink()
    lost = replace(load(tmp_path / "r1"), events=why(0, 3, 1.0))
    with pytest.raises(InputError, match="reason 3 is named by an event, and the run has 0 of them"):
        _ = lost.decisions


def test_who_gives_the_beginning_of_an_id_is_offered_the_runs_that_begin_so(tmp_path):
    for run in ("w1-testbed-0", "w1-testbed-0-2", "other"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"unknown run 'w1'\. Did you mean w1-testbed-0, w1-testbed-0-2\?$"):
        find("w1", runs=tmp_path)


def test_an_id_that_is_taken_or_odd_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "w1").mkdir()
    with pytest.raises(InputError, match=r"run 'w1' is already in .*labkit runs remove w1 .*labkit attach w1"):
        refuse_taken("w1", root=tmp_path)
    with pytest.raises(InputError, match="cannot name a folder"):
        refuse_taken("../w1", root=tmp_path)
    refuse_taken("w2", root=tmp_path)


def test_a_copy_under_another_name_is_a_run_of_that_name(tmp_path):
    with begin(tmp_path) as writer:
        writer.append(by_hand())
    copy = writer.folder.rename(tmp_path / "r2")
    assert (load(copy).info.run, load("r2", runs=tmp_path).info.run) == ("r2", "r2")


@pytest.mark.parametrize(("column", "value"), [("time_s", np.inf), ("time_s", np.nan), ("job", 3), ("machine", 2)])
def test_events_at_no_time_or_of_jobs_and_machines_that_there_are_none_of_are_told_in_one_line(tmp_path, column, value):
    with begin(tmp_path) as writer:
        writer.append(by_hand())
    (part,) = writer.folder.glob("events-*")
    rows = by_hand()
    rows[column][4] = value
    files.write_events(part, rows)
    with pytest.raises(InputError, match=rf"event 4 has the {column} {value:g}; expected"):
        load(tmp_path / "r1")


def test_ids_with_control_characters_are_refused_as_by_the_reader_of_traces(tmp_path):
    from labkit.workloads import read

    for odd in ("a\nb", "a\x1b[2J", "a\x9bb", "a\u202eb", "a\u2028b"):
        with begin(tmp_path, run=f"r{ord(odd[1])}") as writer:
            pass
        frame = three_jobs().to_frame()
        frame["id"] = [odd, "b", "c"]
        files.write_frame(writer.folder / "jobs.parquet", frame, name="jobs")
        with pytest.raises(InputError, match="control characters"):
            load(writer.folder)
        frame.to_csv(tmp_path / "trace.csv", index=False)
        with pytest.raises(InputError, match=r"control characters|cannot be read|line"):
            read(tmp_path / "trace.csv")
