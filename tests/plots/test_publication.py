"""`labkit paper`: every file that it names, a caption with n, trace and cluster, methods that repeat the options."""

import zipfile

import pytest

import labkit
from labkit.core.errors import InputError
from labkit.plots.publication import FILES, caption, methods, write_paper
from labkit.results.store import load
from tests.command import labkit as command

TRACE = "poisson(8, per_hour=60)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    labkit.compare(TRACE, cluster="demo", schedulers="fifo,las", runs=runs, restart_s=30.0)
    return runs


def test_one_command_writes_the_folder_of_a_paper(folder, tmp_path):
    done = command("paper", *(str(run) for run in sorted(folder.iterdir())), "--out", "paper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / "paper" / name).stat().st_size > 0 for name in FILES] == [True] * len(FILES)
    assert "CDF of the job completion time" in done.stdout
    again = command("paper", str(next(folder.iterdir())), "--out", "paper", cwd=tmp_path)
    assert again.returncode == 2
    assert "holds figure.pdf already" in again.stderr


def test_the_texts_name_jobs_trace_cluster_options_and_papers(folder):
    records = [load(run) for run in sorted(folder.iterdir())]
    said = methods(records, seeds=None)
    assert "8 jobs of poisson(8, per_hour=60) on demo" in caption(records, kind="jct", notes=["a note"])
    assert caption(records, kind="jct", notes=["a note"]).endswith(" A note.")
    for part in ("las [@gu2019]", "fifo and", "`restart_s=30.0`", "Each scheduler ran once.", "Lower bound"):
        assert part in said, said


def test_the_archive_is_read_again_as_the_same_runs(folder, tmp_path):
    folders = sorted(folder.iterdir())
    write_paper([load(run) for run in folders], folders, to=tmp_path / "paper")
    with zipfile.ZipFile(tmp_path / "paper" / "runs.zip") as archive:
        archive.extractall(tmp_path / "again")
    for run in folders:
        assert load(tmp_path / "again" / run.name).summary == load(run).summary


def test_a_paper_of_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="needs at least one run"):
        write_paper([], [], to=tmp_path)
