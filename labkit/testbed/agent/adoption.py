"""Take over the processes that an earlier agent started, and end processes that no record has."""

from __future__ import annotations

import os
from typing import Final

from labkit.system.proc import alive
from labkit.testbed.agent.forks import watch
from labkit.testbed.agent.processes import Key
from labkit.testbed.agent.records import AgentRunRecord, Phase, TaskRecord
from labkit.testbed.agent.run import AgentRun
from labkit.testbed.agent.runs import RESTARTED, AgentRuns
from labkit.testbed.agent.wire import now_s, wall_s

NEVER: Final = "the agent died while it started it"


def adopt(runs: AgentRuns) -> None:
    """Read all records, and follow the tasks that run according to them."""
    for folder in sorted(runs.folder.iterdir()):
        record = AgentRunRecord.read(folder) if folder.is_dir() and not folder.is_symlink() else None
        if record is None:
            runs.log(f"{folder.name!r} bears no label; left alone")
            continue
        here = AgentRun(record, folder, log=runs.log)
        here.catch_up()
        runs.all[record.run] = here
        _adopt_run(runs, here)
    _end_orphans(runs)


def _adopt_run(runs: AgentRuns, here: AgentRun) -> None:
    record = here.record
    restarted = record.boot != runs.boot
    for task in record.running:
        if restarted:
            runs.ended(Key(record.run, task.name), None, None, "unknown: the host was restarted")
        else:
            _adopt_task(runs, here, task)
    if restarted and not record.over:
        record.boot, record.until_s = runs.boot, now_s()
        runs.over(here, RESTARTED)
    runs.close_if_done(here)  # its agent may have died before it could


def _adopt_task(runs: AgentRuns, here: AgentRun, task: TaskRecord) -> None:
    key = Key(here.record.run, task.name)
    if task.phase == Phase.STARTING and not _found(runs, here, task):
        return
    child = _is_child(task.pid)
    if not child:
        here.record_event("adopted", task=task.name, pid=task.pid, alive=alive(task.first_process))
    runs.ender.follow(
        key, task.first_process, child=child, forked=None if child else watch(task.server, task.first_process)
    )
    if task.phase == Phase.ENDING:
        runs.ender.end([key], grace_s=0.0)


def _found(runs: AgentRuns, here: AgentRun, task: TaskRecord) -> bool:
    """Find a task whose agent died before it wrote the process number; False if it was never started."""
    found = runs.processes.leader(Key(here.record.run, task.name), task.token)
    if found is None:
        task.phase, task.how, task.ended_s = Phase.ENDED, NEVER, wall_s()
        here.record_event("failed", task=task.name, why=NEVER)
        return False
    task.phase, task.pid, task.start = Phase.RUNNING, found.pid, found.start
    here.record_event("started", task=task.name, pid=task.pid, cores=task.cores, gpus=task.gpus)
    return True


def _is_child(pid: int) -> bool:
    """Return whether this process is its parent: then it was exec'ed by the earlier agent, and gets the exit code."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return True


def _end_orphans(runs: AgentRuns) -> None:
    known = {Key(here.record.run, task.name) for here in runs for task in here.record.running}
    orphans = [key for key in runs.processes.find({}) if key not in known]
    for key in orphans:
        runs.log(f"task {key.task} of run {key.run} has no record; ended")
    runs.ender.end_unknown(orphans)
