"""No other user gets in, no name becomes a path or a command, no secret is written down, and nonsense kills nothing."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.testbed.agent.folder_layout import SOCKET, call, parts
from labkit.testbed.agent.messages import MAX_LINE, NAME, Lines, Refusal, check_name, unpack
from labkit.testbed.agent.service import RequestArguments
from labkit.testbed.errors import AgentError, AgentRefused
from tests.testbed.agent.looking import all_pids, hear, labelled, runs, say, wait_for

HOSTILE = [
    "", ".", "..", "../x", "a/b", "/etc", ".hidden", "a b", "a\nb", "a\0b", "$(id)", "`id`", ";id", "a;b", "x" * 81,
    "é", "a\u202eb", "~", "*", "-" * 81, "con\r", "name\n", "'", '"', "a\\b", "%s", "{}", "runs/../..",
]  # fmt: skip


def put(path: str) -> dict[str, object]:
    return {"data": base64.b64encode(b"x").decode()}


def uses_of_a_name(agent, name):
    in_a_path = [] if name == "a/b" else [
        lambda: agent.start("run", task="u", argv=["true"], files={name: b"x"}),
        lambda: agent.start("run", task="u", argv=["true"], files={f"a/{name}": b"x"}),
    ]  # fmt: skip
    return [
        *in_a_path,
        lambda: agent.start(name, task="u", argv=["true"]),
        lambda: agent.start("run", task=name, argv=["true"]),
        lambda: agent.tell(name, task="t", message=1),
        lambda: agent.stop(name),
        lambda: agent.renew(name),
        lambda: agent.read(name, task="t", file="log"),
        lambda: agent.read("run", task="t", file=f"{name}/log"),
        lambda: list(agent.follow("run", task=name)),
        lambda: list(agent.watch(name)),
    ]


def test_hostile_names_are_refused_wherever_a_name_goes(agent, folder):
    agent.start("run", task="t", argv=["sleep", "1000"])
    before = sorted(folder.rglob("*"))
    for name in HOSTILE:
        for each in uses_of_a_name(agent, name):
            with pytest.raises(AgentRefused) as caught:
                each()
            assert caught.value.kind in ("name", "no_file"), name
    assert sorted(folder.rglob("*")) == before
    assert len(labelled(folder)) == 1


def test_words_of_a_command_are_no_shell(agent, tmp_path):
    words = ["$(touch pwned)", "; touch pwned", "`id`", "a b", "*", "'\"", "\n", "-n", "é"]
    agent.start(
        "run", task="t", argv=[sys.executable, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *words]
    )
    (line,) = agent.follow("run", task="t")
    assert json.loads(line) == words


def test_links_that_a_task_plants_lead_nowhere(agent, folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of another user")
    agent.start("run", task="t", argv=["sleep", "1000"])
    home = folder / "runs/run/t"
    (home / "link").symlink_to(secret)
    (home / "up").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")
    for file in ("link", "up/secret", "pipe"):
        with pytest.raises(AgentRefused, match=r"cannot be read|no plain file"):
            agent.read("run", task="t", file=file)
        with pytest.raises(AgentRefused, match=r"cannot be read|no plain file"):
            list(agent.follow("run", task="t", file=file))
    agent.stop("run", task="t")
    (home / "log").unlink()
    (home / "log").symlink_to(secret)
    with pytest.raises(AgentRefused, match="cannot be started"):
        agent.start("run", task="t", argv=["echo", "overwritten"])
    (home / "log").unlink()
    with pytest.raises(AgentRefused, match="Not a directory"):
        agent.start("run", task="t", argv=["true"], files={"up/secret": b"overwritten"})
    agent.start("run", task="t", argv=["true"], files={"link": b"a file of its own"})
    assert secret.read_text() == "of another user"
    assert (home / "link").read_text() == "a file of its own"


def test_no_secret_is_written_down_or_shown_in_ps(agent, folder):
    secret = "s3cr3t-" + "x" * 20
    agent.start("run", task="t", argv=["sleep", "1000"], env={"TOKEN": secret}, files={"key": secret.encode()})
    with pytest.raises(AgentRefused) as caught:
        agent.start("run", task="u", argv=["true"], env={"TOKEN": secret + "\0"})
    assert secret not in str(caught.value)
    with pytest.raises(AgentRefused) as caught:
        agent.start("run", task="u", argv=["nowhere"], env={"TOKEN": secret}, files={"key": secret.encode()})
    assert secret not in str(caught.value)
    raw = secret.encode()
    coded = base64.b64encode(raw)[:20]
    told = [path for path in folder.rglob("*") if path.is_file() and path.name != "key"]
    assert len(told) >= 5
    assert [path for path in told if raw in path.read_bytes() or coded in path.read_bytes()] == []
    lines = [Path(f"/proc/{pid}/cmdline") for pid in all_pids() if runs(pid)]
    assert [path for path in lines if path.exists() and raw in path.read_bytes()] == []
    assert (folder / "runs/run/t/key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("end", ["stop", "lease"])
def test_a_run_that_is_over_keeps_no_key_and_all_else(agent, folder, tmp_path, end):
    (tmp_path / "my.key").write_text("of another user")
    script = f"mkdir -p a/b; echo x > a/b/c.key; echo y > a/kept; ln -s {tmp_path} a/link; exec sleep 1000"
    agent.start("run", task="t", argv=["sh", "-c", script], files={"home.tar": b"x"}, lease_s=600.0)
    place = folder / "runs/run/t"
    wait_for(lambda: (place / "a/link").exists())
    assert (place / "a/b/c.key").exists()
    agent.stop("run", grace_s=0.1) if end == "stop" else agent.renew("run", lease_s=0.0)
    wait_for(lambda: agent.list("run")[0].tasks["t"].phase == "ended")
    wait_for(lambda: not (place / "a/b/c.key").exists())
    assert not (place / "home.tar").exists()
    assert (place / "a/kept").read_text() == "y\n"
    assert (tmp_path / "my.key").read_text() == "of another user"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_sent_away_even_if_the_folder_is_open(folder, agent):
    for path in (folder, folder / SOCKET):
        path.chmod(0o777)
    handle = os.open(folder, os.O_PATH)
    heard, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(f"/proc/self/fd/{handle}/{SOCKET}")
                os.write(told, sock.recv(4096) or b"nothing")
        except BaseException as error:
            os.write(told, repr(error).encode())
        finally:
            os._exit(0)
    os.close(told)
    os.close(handle)
    with os.fdopen(heard, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    assert json.loads(answer)["error"]["kind"] == "forbidden"
    assert agent.list() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path, dial):
    (tmp_path / "home").mkdir()
    os.chown(tmp_path / "home", 65534, 65534)
    with pytest.raises(AgentError, match="belongs to user 65534"):
        dial(tmp_path / "home")


MALFORMED = [
    b"no JSON\n", b"\n", b"[]\n", b"null\n", b"1\n", b'"x"\n', b"{}\n", b'{"id": 1}\n', b'{"verb": "list"}\n',
    b'{"id": "1", "verb": "list"}\n', b'{"id": true, "verb": "list"}\n', b'{"id": 1, "verb": 2}\n', b"\xff\xfe\n",
    b'{"id": 1.5, "verb": "list"}\n', b"[" * 200_000 + b"\n", b'{"id": NaN, "verb": "list"}\n', b'{"a":' * 5000 + b"\n",
    b'{"id": ' + b"9" * 5000 + b', "verb": "list"}\n',
]  # fmt: skip


def test_a_malformed_request_is_refused_and_the_next_one_is_served(folder, agent):
    for line in MALFORMED:
        refused, served = say(folder, line, b'{"id": 7, "verb": "list"}\n', n_answers=2)
        assert refused["error"]["kind"] == "malformed", line
        assert served == {"id": 7, "ok": []}, line


ODD = [
    {"verb": "lsit"}, {"verb": "__init__"}, {"verb": "serve"}, {"verb": "list", "extra": 1}, {"verb": "start"},
    {"verb": "start", "run": "r", "task": "t", "argv": []}, {"verb": "start", "run": "r", "task": "t", "argv": "sh"},
    {"verb": "start", "run": "r", "task": "t", "argv": ["sh", 1]},
    {"verb": "start", "run": "r", "task": "t", "argv": [""]},
    {"verb": "start", "run": "r", "task": "t", "argv": ["a\0b"]}, {"verb": "renew", "run": "r", "lease_s": "1"},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "env": {"A=B": "x"}},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "env": {"A": 1}},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "cores": [99999]},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "cores": [-1]},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "cores": [True]},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "gpus": ["0; id"]},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "gpus": [-1.5]},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "nice": -5},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "lease_s": 1e400},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "files": {"a": {"data": "%%%"}}},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "files": {"a": {"data": "", "mode": "4777"}}},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "files": {"task.sock": {"data": ""}}},
    {"verb": "start", "run": "r", "task": "t", "argv": ["true"], "files": []},
    {"verb": "measure", "every_s": -1}, {"verb": "gc", "dry_run": 1}, {"verb": "hello", "protocol": 10**9},
    {"verb": "watch", "run": "r", "since": 0.5}, {"verb": "restart", "python": 5},
]  # fmt: skip


def test_odd_arguments_are_refused_by_name(folder, agent):
    for said in ODD:
        (answer,) = say(folder, json.dumps({"id": 3, **said}).encode() + b"\n", n_answers=1)
        assert answer["id"] == 3
        assert answer["error"]["kind"] in ("argument", "name", "unknown_verb", "unknown_run"), said
    assert agent.list() == []
    assert labelled(folder) == []


def test_a_misspelt_word_is_told_the_right_one(folder, agent):
    lines = [b'{"id": 1, "verb": "wach"}\n', b'{"id": 2, "verb": "gc", "dryrun": true}\n']
    said = [answer["error"]["message"] for answer in say(folder, *lines, n_answers=2)]
    assert said == ["unknown verb 'wach'. Did you mean 'watch'?", "gc takes no 'dryrun'. Did you mean 'dry_run'?"]


def test_a_request_without_end_is_cut_off_and_others_go_on(folder, agent):
    with call(folder, SOCKET) as sock:
        sock.settimeout(30)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            sock.sendall(b"x" * 3 * MAX_LINE)
        assert agent.list() == []
    with pytest.raises(AgentRefused) as caught:
        agent.start("run", task="t", argv=["true"], files={"f": b"x" * MAX_LINE})
    assert caught.value.kind == "oversized"
    assert agent.list() == []


def test_the_number_of_a_request_that_is_still_open_cannot_be_taken_again(folder, agent):
    agent.start("run", task="t", argv=["sleep", "1000"])
    with call(folder, SOCKET) as sock:
        sock.settimeout(30)
        sock.sendall(b'{"id": 1, "verb": "watch", "run": "run"}\n{"id": 1, "verb": "list"}\n')
        first, second = hear(sock, 2)
    assert first["item"][0]["kind"] == "opened"
    assert second["error"]["kind"] == "malformed"


def test_too_many_connections_do_not_stop_the_agent(folder, agent):
    many = []
    try:
        for _ in range(300):
            many.append(call(folder, SOCKET))
        assert agent.list() == []
    finally:
        for sock in many:
            sock.close()
    wait_for(lambda: say(folder, b'{"id": 1, "verb": "list"}\n', n_answers=1))


@given(st.lists(st.binary(max_size=40), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_become_lines_or_a_refusal(pieces):
    lines, taken = Lines(limit=64), []
    whole = b"".join(pieces)
    too_long = False
    try:
        for piece in pieces:
            lines.feed(piece)
            while (line := lines.take()) is not None:
                taken.append(line)
    except Refusal:
        too_long = True
    assert too_long == (max(len(line) for line in whole.split(b"\n")) > 64)
    assert too_long or taken == whole.split(b"\n")[:-1]


@given(st.text())
def test_a_name_has_no_character_that_means_something_elsewhere(text):
    try:
        assert check_name(text, "run") == text
    except Refusal:
        return
    assert NAME.fullmatch(text)
    assert not set(text) & set("/\\\0\n \"'$`;&|<>*?~(){}[]!#%=,:@^+")
    assert text not in (".", "..")


@given(st.text(alphabet="ab./-\0\n", max_size=20))
def test_a_path_never_leads_up(text):
    try:
        names = parts(text, "file")
    except Refusal:
        return
    assert ".." not in names
    assert "" not in names


@given(st.binary(max_size=60))
def test_unpack_returns_an_object_or_refuses(line):
    try:
        said = unpack(line)
    except Refusal as error:
        said = error.to_json()
    assert isinstance(said, dict)


@given(st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.floats() | st.text(max_size=8), max_size=4))
def test_arguments_of_any_kind_are_taken_or_refused(given_arguments):
    arguments = RequestArguments("start", given_arguments)
    for take in (
        lambda: arguments.name("run"), lambda: arguments.words("argv"), lambda: arguments.variables("env"),
        lambda: arguments.files("files"), lambda: arguments.gpus("gpus"),
        lambda: arguments.number("lease_s", default=1.0, low=0.0, high=2.0), arguments.done,
    ):  # fmt: skip
        with contextlib.suppress(Refusal):
            take()
