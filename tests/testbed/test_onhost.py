"""Programs that run on hosts before anything is installed there: what they need, and what they send."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from labkit.testbed.onhost import SHARED, receive, shared, source
from labkit.testbed.ssh import host_messages as replies
from labkit.testbed.ssh.host_messages import HostMessages, answer_in
from tests.hang import HANG_S

HERE = Path(shared.__file__).parent
PROGRAMS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("shared", "__init__"))


def bare(name: str, *words: str, stdin: bytes = b"") -> bytes:
    """Return the output of a program on a Python without any installed package."""
    command = [sys.executable, "-I", "-S", "-c", source(name), *words]
    return subprocess.run(command, input=stdin, capture_output=True, check=True, timeout=HANG_S).stdout


@pytest.mark.parametrize("name", [*PROGRAMS, "shared"])
def test_a_program_on_a_host_needs_python_3_8_and_the_standard_library_alone(name: str) -> None:
    tree = ast.parse((HERE / f"{name}.py").read_text("utf-8"), feature_version=(3, 8))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    assert {each for each in imported - {SHARED} if each.partition(".")[0] not in sys.stdlib_module_names} == set()
    strict = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"]
    assert not [node for node in strict if not isinstance(node.value, ast.Name)], "zip has strict= from Python 3.10 on"


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("inspect", replies.InspectReply), ("sweep", replies.SweepReply), ("depend", replies.DependReply),
        ("examine", replies.HostFacts), ("examine", replies.Deployed), ("examine", replies.Torch),
        ("examine", replies.EchoPort), ("examine", replies.ConnectResult), ("examine", replies.BandwidthResult),
    ],
)  # fmt: skip
def test_each_field_that_is_decoded_here_is_one_that_the_program_sends(name: str, taken: type[Any]) -> None:
    nodes = ast.walk(ast.parse((HERE / f"{name}.py").read_text("utf-8")))
    written = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert {each.name for each in fields(taken)} <= written


def test_a_host_without_packages_says_what_is_installed_there(tmp_path: Path) -> None:
    looked = answer_in(bare("inspect", str(tmp_path), "0" * 16, "base-x", "pip"), replies.InspectReply)
    assert (looked.same, looked.have, looked.wheels) == (False, frozenset(), {})
    assert looked.python[:2] == sys.version_info[:2]


def test_a_host_without_packages_answers_questions(tmp_path: Path) -> None:
    asked = b'{"ask": "clock"}\n{"ask": "facts"}\n{"ask": "dial", "peers": [["b", "127.0.0.1", 1, "w"]]}\n'
    found = HostMessages(io.BufferedReader(io.BytesIO(bare("examine", str(tmp_path), stdin=asked))))  # type: ignore[arg-type]
    assert found.answer(replies.Clock).time_s > 0
    assert found.answer(replies.HostFacts).deployed == replies.Deployed("", "")
    assert found.answer(dict[str, replies.ConnectResult])["b"].error == "Connection refused"


def test_what_an_install_wrote_is_what_the_next_one_and_the_doctor_find(tmp_path: Path) -> None:
    order = {"hash": "f" * 16, "version": "1", "base": sys.executable, "files": {}, "sent": [], "bytes": 8}
    packed = b"x\x9c\x03\x00\x00\x00\x00\x01"  # nothing, compressed
    said = bare("receive", str(tmp_path), stdin=json.dumps(order).encode() + b"\n" + packed)
    assert answer_in(said, replies.ReceiveReply).placed == "f" * 16
    found = shared.read_manifest(str(tmp_path / "env" / "current"))
    assert found == shared.EnvironmentManifest("f" * 16, "1", sys.executable, {})
    facts = answer_in(bare("examine", str(tmp_path), stdin=b'{"ask": "facts"}\n'), replies.HostFacts)
    assert facts.deployed.hash == "f" * 16
    swept = answer_in(bare("sweep", str(tmp_path), "no"), replies.SweepReply)
    assert (swept.removed, swept.parts) == ([], 0)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("hash", 7, "hash is '7', expected text"),
        ("files", {"../../.bashrc": "0"}, r"files has '../../.bashrc', a path that leads out of the environment"),
        ("files", {"/etc/passwd": "0"}, r"files has '/etc/passwd', a path that leads out of the environment"),
        ("files", ["a"], "expected SHA-256 by path"),
        ("sent", [["a"]], r"sent is \"\[\['a'\]\]\", expected \[SHA-256, size\] of each file"),
        ("bytes", -1, "bytes is '-1', expected a number of bytes"),
    ],
)
def test_an_order_of_another_form_installs_nothing_and_names_the_field(
    tmp_path: Path, field: str, value: Any, why: str
) -> None:
    order = {"hash": "f", "version": "1", "base": "python", "files": {}, "sent": [], "bytes": 0, field: value}
    with pytest.raises(ValueError, match=why):
        receive.SentFiles.read(json.dumps(order).encode())
    said = bare("receive", str(tmp_path), stdin=json.dumps(order).encode() + b"\n")
    assert field in answer_in(said, replies.ProgramFault).error
    assert not (tmp_path / "env").exists()


def test_a_damaged_manifest_is_none(tmp_path: Path) -> None:
    for content in ("", "[]", '{"hash": "f"}', '{"hash": "f", "version": "1", "base": "b", "files": {"../a": "0"}}'):
        (tmp_path / "manifest.json").write_text(content, "utf-8")
        assert shared.read_manifest(str(tmp_path)) == shared.EnvironmentManifest()


def test_a_program_fits_the_command_line_of_a_login_shell() -> None:
    assert max(len(source(name)) for name in PROGRAMS) < 64 << 10  # Linux takes 128 KiB in one argument
