"""Environment of a job's members: what decides their hashes, threads and numerics is the same in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from labkit.elastic.forkserver.place import HASH_SEED

FIXED: Final = {"PYTHONHASHSEED": HASH_SEED, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
NUMERIC: Final = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "ATEN_", "TORCH_", "PYTORCH_", "CUBLAS_", "CUDNN_",
    "NVIDIA_TF32",
)  # fmt: skip
"""Prefixes of variables by which libraries choose kernels, precision and numbers of threads."""


def numeric_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the process that starts a job which all its members are to have.

    >>> numeric_variables({"MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "8", "HOME": "/somewhere"})
    {'MKL_CBWR': 'COMPATIBLE'}
    """
    return {name: value for name, value in sorted(env.items()) if name.startswith(NUMERIC) and name not in FIXED}


def members_environment(env: Mapping[str, str], numeric: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a member on a host with `env`: its numeric variables are those of the job.

    >>> members_environment({"PATH": "/bin", "MKL_CBWR": "AVX2", "PYTHONHASHSEED": "7"}, {})["PYTHONHASHSEED"]
    '0'
    """
    kept = {name: value for name, value in env.items() if not name.startswith(NUMERIC)}
    return {**kept, **numeric, **FIXED}
