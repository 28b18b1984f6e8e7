"""labkit's own files: what is written is read back, whole or not at all."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError, TraceError
from labkit.core.jobs import Jobs
from labkit.workloads.readers import read, read_csv, read_parquet, sniff, write

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=8).filter(
    lambda text: text.strip() == text and text not in ("", "None", "nan")
)
POSITIVE = st.floats(1e-3, 1e12)


@st.composite
def traces(draw):
    n = draw(st.integers(1, 5))

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    workers, servers = column(st.integers(1, 9)), column(st.integers(0, 9))
    return Jobs.of(
        arrival_s=column(st.floats(0, 1e9)),
        total_steps=column(POSITIVE),
        true_steps=column(POSITIVE),
        id=draw(st.lists(TEXT, min_size=n, max_size=n, unique=True)),
        model=column(TEXT),
        user=column(TEXT),
        duration_s=column(POSITIVE | st.just(np.nan)),
        n_workers=workers,
        n_ps=servers,
        max_workers=[w + 1 for w in workers],
        worker_demand=[column(st.floats(0, 99))[:1] * 3 for _ in range(n)],
        sync=column(st.booleans()),
        weight=column(POSITIVE),
        slo_s=column(POSITIVE | st.just(np.nan)),
        samples_per_step=draw(POSITIVE | st.just(np.nan)),
    )


def same(a, b):
    for f in fields(Jobs):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if f.name in ("name", "models", "users"):  # the order of the distinct names does not matter
            continue
        if f.name in ("model", "user"):
            x, y = (np.array(getattr(jobs, f"{f.name}s"))[getattr(jobs, f.name)] for jobs in (a, b))
        if isinstance(x, np.ndarray) and x.dtype.kind == "f":
            assert np.array_equal(x, y, equal_nan=True), f.name
        elif isinstance(x, np.ndarray):
            assert x.tolist() == y.tolist(), f.name
        else:
            assert x == y, f.name


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@given(jobs=traces())
def test_what_is_written_is_read_back_to_the_last_bit(tmp_path_factory, ending, jobs):
    path = tmp_path_factory.mktemp("own") / f"trace.{ending}"
    assert write(jobs, path) == path
    assert sniff(path) == ending
    same(jobs, read(path))
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no scratch file is left


def test_a_name_that_a_spreadsheet_would_compute_is_text_in_a_csv_and_comes_back(tmp_path):
    names = ["=HYPERLINK(1)", "+cmd|x", "-2+3", "@SUM(A1)", "'=1", "''", "-5", "long" * 90]
    jobs = Jobs.of(arrival_s=range(8), total_steps=5, id=names, user=names, model=names)
    path = write(jobs, tmp_path / "a.csv")
    cells = pd.read_csv(path, dtype=str)
    assert [cell for cell in cells[["id", "user", "model"]].to_numpy().ravel() if cell[0] in "=+-@"] == ["-5"] * 3
    same(jobs, read(path))


def test_two_columns_are_enough(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("total_steps,arrival_s\n10,5\n20,1\n")
    jobs = read(path)
    assert jobs.arrival_s.tolist() == [1, 5]
    assert jobs.total_steps.tolist() == [20, 10]


def test_columns_that_only_repeat_defaults_are_not_written(tmp_path):
    path = write(Jobs.of(arrival_s=[0, 1], total_steps=5), tmp_path / "a.csv")
    assert path.read_text().splitlines()[0] == "id,arrival_s,total_steps"


CSV = "id,arrival_s,total_steps,n_workers,max_workers,sync\na,0,10,2,4,True\nb,1,20,1,1,False\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("n_workers", "n_worker", "unknown column 'n_worker'. Did you mean 'n_workers'?"),
        ("arrival_s", "duration_s", "column arrival_s is missing"),
        ("b,1,", "a,1,", "line 3: id is 'a'; expected an id that occurs once"),
        ("b,1,", "b,-1,", "line 3: arrival_s is '-1'; expected a number >= 0"),
        ("b,1,20", "b,1,nan", "line 3: total_steps"),
        ("2,4,", "2,1,", "line 2: max_workers is '1'; expected at least n_workers"),
        ("2,4,", "0,4,", "line 2: n_workers is '0'; expected a whole number >= 1"),
        ("False", "maybe", "line 3: sync is 'maybe'; expected True or False"),
        ("sync", "id", "a column occurs twice"),
    ],
)
def test_faults_of_a_csv_are_told_with_line_and_column(tmp_path, old, new, message):
    path = tmp_path / "a.csv"
    assert old in CSV
    path.write_text(CSV.replace(old, new, 1))
    with pytest.raises(TraceError) as told:
        read_csv(path)
    assert message in str(told.value)


def test_faults_of_a_parquet_file_are_told_with_row_and_column(tmp_path):
    frame = Jobs.of(arrival_s=[0, 1], total_steps=5).to_frame()
    path = tmp_path / "a.parquet"
    frame.assign(total_steps=[5.0, np.nan]).to_parquet(path)
    with pytest.raises(TraceError, match="line 2: total_steps is missing"):
        read_parquet(path)
    frame.drop(columns="arrival_s").to_parquet(path)
    with pytest.raises(TraceError, match="column arrival_s is missing"):
        read_parquet(path)
    frame.rename(columns={"weight": "wieght"}).to_parquet(path)
    with pytest.raises(TraceError, match="Did you mean 'weight'"):
        read_parquet(path)


def test_an_ending_that_tells_no_format_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.csv or \.parquet"):
        write(Jobs.of(arrival_s=0, total_steps=1), tmp_path / "trace.txt")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, ending):
    path = tmp_path / f"a.{ending}"
    write(Jobs.of(arrival_s=0, total_steps=1), path)
    before = path.read_bytes()

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("labkit.core.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(Jobs.of(arrival_s=0, total_steps=2), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
