"""Device types that jobs demand: one, one of several, any but some."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import simulate
from labkit.core import Jobs
from labkit.core.device_types import may_run_on, refuse_unknown, unmet_types
from labkit.core.errors import InputError
from labkit.topology import no_network
from labkit.topology.servers import Server

KINDS = ("T4", "V100M16", "V100M32")
CLUSTER = no_network(3, servers=[(1, Server(kind, ((2.0, 8.0, 64.0),), device_type=kind)) for kind in KINDS])


def demanding(*demands: str) -> Jobs:
    n = len(demands)
    return Jobs.of(arrival_s=np.zeros(n), total_steps=60.0, duration_s=60.0, device_type=list(demands))


def test_a_set_allows_its_types_and_its_opposite_the_others() -> None:
    jobs = demanding("", "T4", "V100M16|V100M32", "!T4", "!T4|V100M16", "A100|T4", "A100")
    allowed = may_run_on(jobs, CLUSTER)
    found = [[kind for kind, may in zip(CLUSTER.device_types, row, strict=True) if may] for row in allowed]
    others = list(KINDS[1:])
    assert found == [list(KINDS), ["T4"], others, others, ["V100M32"], ["T4"], list(KINDS)]
    (note,) = unmet_types(jobs, CLUSTER)
    assert "A100 (1 of 7 jobs)" in note


def test_runs_keep_to_sets() -> None:
    record = simulate(demanding(*["!T4"] * 6), cluster=CLUSTER, scheduler="fifo", speed="recorded")
    placed = record.events["group"][record.events["group"] >= 0]
    assert set(CLUSTER.group_type[placed].tolist()) == {1, 2}
    assert sorted(record.table["first_start_s"].tolist()) == [0, 0, 0, 0, 60, 60]


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        ("T4|V100M23", r"job 1 demands device type 'T4\|V100M23'; .* has no 'V100M23'. Did you mean 'V100M32'\?"),
        ("T4||V100M16", "has no ''. Expected names with | between them"),
        ("!", "has no ''"),
        ("T4|quadro", r"has no 'quadro'. Expected names with \| between them"),
        ("!T4|!V100M16", "has no '!V100M16'"),
        ("!T4|V100M16|V100M32", "has no other. It has T4, V100M16, V100M32; --any-type"),
    ],
)
def test_a_set_with_an_unknown_type_is_refused_with_what_was_meant(demand: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        refuse_unknown(demanding("T4", demand), CLUSTER, known=["v100", "a100"])
    refuse_unknown(demanding("T4", "A100|T4", "V100M23"), CLUSTER, known=["a100"])  # one name alone is noted
