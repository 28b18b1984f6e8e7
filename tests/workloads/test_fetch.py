"""Downloads, from a server on this machine: whole and checked, or an error and nothing left behind."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from labkit.core.errors import InputError
from labkit.workloads import named_traces
from labkit.workloads.named_traces import PUBLIC, PublicTrace, fetch
from labkit.workloads.readers import read

PHILLY = b"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"


class Quiet(SimpleHTTPRequestHandler):
    hits: list[str] = []  # noqa: RUF012

    def log_message(self, *args):
        self.hits.append(self.path)


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    Quiet.hits.clear()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()
    thread.join()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def packed(files, kind):
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def linked(name, target):
    out, member = io.BytesIO(), tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.addfile(member)
    return out.getvalue()


@pytest.fixture
def public(monkeypatch):
    def add(name, files, main):
        trace = PublicTrace(base_url="http://127.0.0.1:9", files=files, main=main, licence="none", what="a test")
        monkeypatch.setitem(named_traces.PUBLIC, name, trace)

    return add


def test_a_file_with_the_right_checksum_is_kept_and_can_be_read(server, public, tmp_path):
    folder, url = server
    (folder / "philly.csv").write_bytes(PHILLY)
    public("mine", (("philly.csv", sha256(PHILLY)),), "philly.csv")
    path = fetch("mine", base_url=url, cache=tmp_path / "cache")
    assert path == tmp_path / "cache" / "mine" / "philly.csv"
    assert len(read(path)) == 1


def test_a_second_fetch_downloads_nothing(server, public, tmp_path):
    folder, url = server
    (folder / "philly.csv").write_bytes(PHILLY)
    public("mine", (("philly.csv", sha256(PHILLY)),), "philly.csv")
    for _ in range(2):
        fetch("mine", base_url=url, cache=tmp_path / "cache")
    assert len(Quiet.hits) == 1


def test_a_wrong_checksum_is_an_error_and_nothing_is_left_behind(server, public, tmp_path):
    folder, url = server
    (folder / "philly.csv").write_bytes(PHILLY + b"altered")
    public("mine", (("philly.csv", sha256(PHILLY)),), "philly.csv")
    with pytest.raises(InputError, match="its checksum is not the published one") as told:
        fetch("mine", base_url=url, cache=tmp_path / "cache")
    assert "\n" not in str(told.value)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def test_an_altered_copy_in_the_cache_is_replaced(server, public, tmp_path):
    folder, url = server
    (folder / "philly.csv").write_bytes(PHILLY)
    public("mine", (("philly.csv", sha256(PHILLY)),), "philly.csv")
    path = fetch("mine", base_url=url, cache=tmp_path / "cache")
    path.write_bytes(b"altered")
    assert fetch("mine", base_url=url, cache=tmp_path / "cache").read_bytes() == PHILLY


def test_a_file_that_is_not_there_is_an_error_and_nothing_is_left_behind(server, public, tmp_path):
    _, url = server
    public("mine", (("gone.csv", sha256(PHILLY)),), "gone.csv")
    with pytest.raises(InputError, match=r"gone\.csv: download failed \(404"):
        fetch("mine", base_url=url, cache=tmp_path / "cache")
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def test_a_server_that_is_not_there_is_an_error(public, tmp_path):
    public("mine", (("a.csv", sha256(PHILLY)),), "a.csv")
    with pytest.raises(InputError, match="download failed"):
        fetch("mine", base_url="http://127.0.0.1:9", cache=tmp_path / "cache")


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_archives_are_unpacked(server, public, tmp_path, kind):
    folder, url = server
    data = packed({"data/philly.csv": PHILLY}, kind)
    (folder / f"data.{kind}").write_bytes(data)
    public("mine", ((f"data.{kind}", sha256(data)),), "data/philly.csv")
    for _ in range(2):
        assert len(read(fetch("mine", base_url=url, cache=tmp_path / "cache"))) == 1
    assert sorted(p.name for p in (tmp_path / "cache" / "mine").iterdir()) == ["data", f"data.{kind}"]


@pytest.mark.parametrize("name", ["../../escaped.csv", "{tmp_path}/escaped.csv", "link -> ../.."])
def test_an_archive_cannot_write_outside_its_folder(server, public, tmp_path, name):
    folder, url = server
    name = name.format(tmp_path=tmp_path)
    data = linked(*name.split(" -> ")) if " -> " in name else packed({name: PHILLY}, "tar.gz")
    (folder / "data.tar.gz").write_bytes(data)
    public("mine", (("data.tar.gz", sha256(data)),), "escaped.csv")
    with pytest.raises(InputError, match="cannot be unpacked"):
        fetch("mine", base_url=url, cache=tmp_path / "cache")
    assert list(tmp_path.rglob("escaped.csv")) == []


def test_an_archive_without_the_promised_file_is_an_error(server, public, tmp_path):
    folder, url = server
    data = packed({"other.csv": PHILLY}, "zip")
    (folder / "data.zip").write_bytes(data)
    public("mine", (("data.zip", sha256(data)),), "philly.csv")
    with pytest.raises(InputError, match=r"philly\.csv is not among the files"):
        fetch("mine", base_url=url, cache=tmp_path / "cache")


@pytest.mark.parametrize("name", ["helios", "google-2011"])
def test_a_trace_without_a_published_checksum_is_refused_unless_the_user_vouches_for_one(name, tmp_path):
    with pytest.raises(InputError, match=r"no checksum of .* is published.*--checksum"):
        fetch(name, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_checksum_of_ones_own_is_checked(server, tmp_path):
    folder, url = server
    data = packed({"data/Venus/cluster_log.csv": b"x"}, "zip")
    (folder / "data.zip").write_bytes(data)
    with pytest.raises(InputError, match="not the published one"):
        fetch("helios", base_url=url, cache=tmp_path / "cache", checksum="0" * 64)
    assert fetch("helios", base_url=url, cache=tmp_path / "cache", checksum=sha256(data)).read_bytes() == b"x"


@pytest.mark.parametrize(
    ("name", "checksum", "message"),
    [
        ("phily", None, "Did you mean 'philly'"),
        ("philly", "abc", "is no SHA-256"),
        ("alibaba-2020", "0" * 64, "has 2 files with published checksums"),
    ],
)
def test_wrong_requests_are_refused(name, checksum, message, tmp_path):
    with pytest.raises(InputError, match=message):
        fetch(name, cache=tmp_path, checksum=checksum)


@pytest.mark.parametrize(
    ("trace", "name"),
    [
        ("philly", "philly/philly.csv"),
        ("alibaba-2023", "alibaba/openb_pod_list_default.csv"),
        ("alibaba-2023", "alibaba/openb_node_list_gpu_node.csv"),
        ("gavel-throughputs", "gavel/simulation_throughputs.json"),
        ("dl2-speeds", "dl2/config_speed.txt"),
        ("gavel-physical", "gavel/traces/max_min_fairness.trace"),
        ("gavel-physical", "gavel/traces/small_test.trace"),
        ("gavel-physical", "gavel/traces/artifact_evaluation.trace"),
    ],
)
def test_registered_checksums_are_those_of_the_files_at_hand(shared_data, trace, name):
    known = {file.rsplit("/", 1)[-1]: checksum for file, checksum in PUBLIC[trace].files}
    path = shared_data(name)
    assert known[path.name] == sha256(path.read_bytes())


def test_every_public_trace_tells_its_licence():
    assert all(f"[{trace.licence}]" in str(trace) for trace in PUBLIC.values())
