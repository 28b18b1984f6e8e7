"""The file `job.json`: what its reader accepts, and what it says of a file that is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.elastic.protocol.program import SPEC, Spec, option_values
from labkit.elastic.protocol.sites import NetworkConfig, NetworkMode, Site
from labkit.elastic.transport import Scheme

WHOLE = Spec(
    params=(("w", 0, (3, 2)), ("b", 6, (2,))), extents=((0, 8),), optimizer="adam",
    options=option_values({"lr": 0.1, "betas": [0.9, 0.999], "amsgrad": False}), batch=8, n_shards=2, n_steps=9,
    scheme=Scheme.TLS, reach=NetworkConfig(NetworkMode.TLS, ("127.0.0.1",), (4000, 4009), "job-1"),
    sites=(Site("a/0", "a", "127.0.0.1", cores=(0, 1)), Site("b/0", "b", "127.0.0.1", devices=("cuda:0",))),
)  # fmt: skip


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    WHOLE.save(tmp_path)
    assert Spec.load(tmp_path) == WHOLE
    assert list(Spec.load(tmp_path).places) == ["a/0", "b/0"]


@pytest.mark.parametrize(
    ("was", "now", "what"),
    [
        ('"batch":8', '"batch":"many"', r"Spec\.batch"),
        ('"batch":8', '"batch":-8', r"Spec\.batch"),
        ('"batch":8,', "", r"Spec\.batch"),
        ('"batch":8', '"batch":8,"rack":1', r"Spec\.rack"),
        ('"network":"tls"', '"network":"pigeon"', r"Spec\.reach\.network"),
        ('"host":"a"', '"host":7', r"Spec\.sites\.0\.host"),
        ('"scheme":"tls"', '"scheme":"morse"', r"Spec\.scheme"),
        ('"lr":0.1', '"lr":{}', r"Spec\.options\.lr"),
        ("{", "", "JSON"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line_that_names_the_field(
    tmp_path: Path, was: str, now: str, what: str
) -> None:
    WHOLE.save(tmp_path)
    text = (tmp_path / SPEC).read_text()
    assert was in text
    (tmp_path / SPEC).write_text(text.replace(was, now, 1))
    with pytest.raises(InputError, match=rf"(?s)job.json is damaged, or of another .*{what}") as said:
        Spec.load(tmp_path)
    assert "\n" not in str(said.value)
