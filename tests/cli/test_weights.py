"""`labkit weights show`: what a file of weights holds, and what it tells of the data of its training."""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from labkit.cli.app import app
from labkit.core import InputError
from labkit.learning.disclosure import UNKNOWN, disclosure, policies
from labkit.schedulers.dl2 import load
from reproductions.dl2.policy import FlatNet, Form
from reproductions.dl2.scheduler import FlatWeights
from reproductions.marl.graphs import Form as MarlForm
from reproductions.marl.policy import shapes
from reproductions.marl.scheduler import MarlWeights

SHIPPED = [name for files, _ in policies().values() for name in files.shipped()]
COMMAND = "labkit train-policy dl2 --throughputs secret/speeds.csv"


def shown(*words: str) -> str:
    done = CliRunner().invoke(app, ["weights", "show", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def raw(path: Path, header: dict[str, object], data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def published(folder: Path) -> list[Path]:
    """Return a file of each policy of which none ships."""
    form = Form(released=False, n_jobs=2, n_models=1, all_reduce=False, first_bundle=False, scaled=True)
    n, m = 4, 1
    sizes = {
        "first": (form.n_jobs * form.n_features, n), "first_bias": (n,), "middle": (m, n, n), "middle_bias": (m, n),
        "gain": (m + 1, n), "shift": (m + 1, n), "last": (n, form.n_actions), "last_bias": (form.n_actions,),
    }  # fmt: skip
    net = FlatNet(**{name: np.ones(sizes[name], np.float32) for name in FlatNet._fields})
    FlatWeights(net, form, ("our-model",), 300.0, COMMAND).save(folder / "flat.safetensors")
    placing = MarlForm(models=("our-model",))
    nets = ({name: np.ones(shape, np.float32) for name, shape in shapes(placing).items()},)
    MarlWeights(nets, placing, 300.0, COMMAND).save(folder / "marl.safetensors")
    return [folder / "flat.safetensors", folder / "marl.safetensors"]


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_that_ship_are_shown_down_to_each_tensor_and_end_with_what_can_be_read(name):
    found, text = disclosure(name), shown(name)
    assert found.fault == ""
    assert all(tensor.name in text for tensor in found.tensors)
    assert found.metadata["source"] in text
    last = text.splitlines()[-1]
    assert last == found.readable
    assert "the command as it was typed (its paths and names may be private)" in last
    assert ("how fast each of its models runs" in last) == name.startswith("dl2")
    assert UNKNOWN not in text


def test_every_policy_that_train_policy_writes_is_known(tmp_path):
    kinds = {disclosure(name).metadata["policy"] for name in (*SHIPPED, *published(tmp_path))}
    assert kinds == set(policies())
    for path in published(tmp_path):
        found = disclosure(path)
        assert found.fault == ""
        assert {tensor.holds for tensor in found.tensors} == {"weights of the network"}
        assert "names of" in found.readable


def test_what_stands_in_a_file_s_tensors_is_what_is_shown(tmp_path):
    mine = load("dl2")
    path = tmp_path / "mine.safetensors"
    replace(mine, speeds=None, source=COMMAND).save(path)
    assert "how fast" not in disclosure(path).readable
    told = json.loads(shown(str(path), "--json"))
    assert told["metadata"]["source"] == COMMAND
    middle = next(tensor for tensor in told["tensors"] if tensor["name"] == "middle")
    assert middle["shape"] == list(mine.net.middle.shape)
    assert middle["least"] == pytest.approx(float(mine.net.middle.min()))
    assert middle["greatest"] == pytest.approx(float(mine.net.middle.max()))
    assert middle["holds"] == "weights of the network"


def test_a_table_in_a_file_of_the_former_version_is_told_with_what_to_do(tmp_path):
    files, _ = policies()["dl2"]
    former, path = replace(files, version="1"), tmp_path / "former.safetensors"
    former.write(path, {"speeds": np.ones((8, 18, 18)), "bias": np.ones(3)}, source=COMMAND)
    text = shown(str(path))
    assert "Whoever has this file can read: the whole speed table of the training, value by value" in text
    assert "do not pass it on" in text
    assert "train-policy" in text


@pytest.mark.parametrize("name", SHIPPED)
def test_a_tensor_that_does_not_belong_there_is_never_called_weights(name, tmp_path):
    found = disclosure(name)
    tensors = {tensor.name: np.ones(tensor.shape, np.float32) for tensor in found.tensors}
    path = tmp_path / "more.safetensors"
    save_file(tensors | {"zz_table": np.ones(5, np.float32)}, path, metadata=dict(found.metadata))
    more = disclosure(path)
    assert more.fault
    assert next(tensor.holds for tensor in more.tensors if tensor.name == "zz_table") == UNKNOWN
    assert "What else its tensors hold is not known" in more.readable


def test_a_stranger_s_text_cannot_move_the_cursor_or_colour_a_terminal(tmp_path):
    path = tmp_path / "evil.safetensors"
    evil = "a\x1b[2J\rb\u202e[red]c\n"
    save_file({evil: np.ones(2, np.float32)}, path, metadata={evil: evil, "policy": "dl2", "version": "2"})
    text = shown(str(path))
    assert all(letter.isprintable() for letter in text.replace("\n", ""))
    assert r"a\x1b[2J\rb\u202e[red]c\n" in text
    save_file({evil: np.ones(2, np.float32)}, path, metadata={"policy": "marl", "version": "1"})
    with pytest.raises(InputError) as refused:
        policies()["marl"][1](path)
    assert str(refused.value).isprintable()


def test_types_that_numpy_has_not_and_numbers_that_are_not_finite_are_listed_without_a_range(tmp_path):
    header = {
        "brain": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "eight": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [4, 6]},
    }
    found = disclosure(raw(tmp_path / "a.safetensors", header, bytes(6)))
    assert [(each.name, each.shape, each.least) for each in found.tensors] == [
        ("brain", (2,), None),
        ("eight", (2,), None),
    ]
    save_file({"x": np.array([np.nan, np.inf]), "y": np.array([np.nan, 2.0])}, tmp_path / "b.safetensors")
    least = {each.name: each.least for each in disclosure(tmp_path / "b.safetensors").tensors}
    assert least == {"x": None, "y": 2.0}
    json.loads(shown(str(tmp_path / "b.safetensors"), "--json"), parse_constant=pytest.fail)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("something in a stranger's file was executed",)


def test_damaged_missing_and_executable_files_are_refused_in_one_line(tmp_path):
    whole = policies()["dl2"][0].find("dl2").read_bytes()
    files = {
        "cut": whole[:-100], "empty": b"", "short": whole[:5], "pickle": pickle.dumps(Bomb()),
        "header": struct.pack("<Q", 1 << 62) + b"{}", "text": b"model,n_ps\n" * 100,
    }  # fmt: skip
    for name, content in files.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(content)
        with pytest.raises(
            InputError, match=r"not a safetensors file \(.*\); expected weights of a policy\.$"
        ) as refused:
            disclosure(path)
        assert str(refused.value).isprintable()
    with pytest.raises(InputError, match=r"there is no such file; .* Train some: labkit train-policy dl2\.$"):
        disclosure(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match=r"unknown weights 'dl3'\. Did you mean 'dl2'\?"):
        disclosure("dl3")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(InputError, match=r"folder\.safetensors: "):
        disclosure(tmp_path / "folder.safetensors")
