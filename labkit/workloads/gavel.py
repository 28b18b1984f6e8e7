"""Published throughputs of Gavel's 26 job configurations on V100, P100 and K80, alone and in pairs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.core.device_types import type_index
from labkit.core.errors import InputError, unknown
from labkit.core.faults import MAX_LISTED, fault_report
from labkit.core.files import refuse_unreadable
from labkit.core.resources import Bools, Floats, Ints

PUBLISHED: Final = Path(__file__).with_name("gavel_throughputs.csv")
_KEY: Final = re.compile(r"""^\(['"](.+)['"], (\d{1,4})\)$""")

Entries = Mapping[tuple[str, int], Mapping[Any, Any]]


class EstimatedThroughput(UserWarning):
    """A throughput was not measured for this number of GPUs and was estimated per GPU from the nearest one."""


@dataclass(frozen=True, eq=False)
class Throughputs:
    """Steps per second of whole jobs by model, number of GPUs and device type.

    Attributes
    ----------
    device_types : tuple of str
        (T,) as in the source: "k80", "p100", "v100", and "..._unconsolidated" where they were read from Gavel's file.
    models : tuple of str
        (K,) names such as "ResNet-18 (batch size 64)".
    n_gpus : array
        (S,) numbers of GPUs that were measured at all, ascending.
    alone : array
        (K, S, T) steps/s of a job with its GPUs to itself; 0: cannot run there; NaN: not measured.
    shared : array or None
        (K, S, K, T) steps/s of the first job when each of its GPUs is shared with a job of the second model and the
        same number of GPUs; NaN: not measured. None: this table has no pairs.
    in_proportion : bool
        Speeds grow with the number of GPUs by definition, so that none is said to be estimated.

    References
    ----------
    .. [1] Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads" (OSDI 2020),
       Table 2, and the measurements in its public repository.
    """

    device_types: tuple[str, ...]
    models: tuple[str, ...]
    n_gpus: Ints
    alone: Floats
    shared: Floats | None = None
    in_proportion: bool = False

    @classmethod
    def published(cls) -> Self:
        """Return the published figures: 26 models on K80, P100 and V100, without pairs.

        >>> table = Throughputs.published()
        >>> table.steps_per_s("A3C", n_gpus=1, device_types=("v100", "k80")).round(2).tolist()
        [[7.18, 3.44]]
        """
        rows, types = _published_rows()
        models = tuple(dict.fromkeys(model for model, _, _ in rows))
        counts = sorted({n for _, n, _ in rows})
        alone = np.full((len(models), len(counts), len(types)), np.nan)
        for model, n, values in rows:
            alone[models.index(model), counts.index(n)] = values
        return cls(types, models, np.array(counts, np.int32), alone)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return the figures of a file in the format of Gavel's `simulation_throughputs.json`, pairs included.

        Raises
        ------
        InputError
            If the file cannot be read, or with every faulty key: what it holds and what was expected.
        """
        raw = _json(Path(path))
        faults: list[str] = []
        entries = {str(kind): _parsed(str(kind), jobs, faults) for kind, jobs in raw.items()}
        if not faults and not any(entries.values()):
            faults.append('it has no throughputs; expected {device type: {"(\'MODEL\', GPUs)": {"null": steps/s}}}')
        if faults:
            raise InputError(fault_report(str(path), faults))
        return cls.of_entries(entries)

    @classmethod
    def of_entries(cls, entries: Mapping[str, Entries]) -> Self:
        """Return a table from {device type: {(model, GPUs): {None: steps/s, (partner, GPUs): [steps/s, steps/s]}}}."""
        keys = dict.fromkeys(key for jobs in entries.values() for key in jobs)
        models = tuple(dict.fromkeys(model for model, _ in keys))
        counts = sorted({n for _, n in keys})
        shape = (len(models), len(counts), len(models), len(entries))
        place = {name: k for k, name in enumerate(models)}
        alone, shared = np.full((shape[0], shape[1], shape[3]), np.nan), np.full(shape, np.nan)
        for t, jobs in enumerate(entries.values()):
            for (model, n), others in jobs.items():
                k, s = place[model], counts.index(n)
                for other, value in others.items():
                    if other is None:
                        alone[k, s, t] = value
                    elif other[1] == n and other[0] in place:
                        shared[k, s, place[other[0]], t] = value[0]
        return cls(
            tuple(entries), models, np.array(counts, np.int32), alone, None if np.isnan(shared).all() else shared
        )

    def steps_per_s(
        self,
        model: Sequence[str] | str,
        *,
        n_gpus: ArrayLike,
        device_types: Sequence[str] | None = None,
        strict: bool = False,
        warn: bool = True,
    ) -> Floats:
        """Return the steps/s of jobs on each device type, (N, T).

        A number of GPUs that was not measured gets the throughput per GPU of the nearest measured one (of two equally
        near ones the smaller), times that number. 0 where a job cannot run or was never measured on a type.

        Parameters
        ----------
        model : sequence of str or str
            (N,) model names.
        n_gpus : array
            (N,) or one for all, > 0.
        device_types : sequence of str, optional
            (T,) columns of the answer; all of the table's by default.
        strict : bool
            Refuse what was not measured.
        warn : bool
            Warn once, with all that was estimated.

        Raises
        ------
        InputError
            If a model or a device type is unknown, a number of GPUs is not positive, or, with `strict`, a number of
            GPUs was not measured.

        Warns
        -----
        EstimatedThroughput
            Once per call.
        """
        names = [model] if isinstance(model, str) else list(model)
        gpus = np.broadcast_to(np.asarray(n_gpus, np.float64), (max(len(names), np.size(n_gpus)),))
        which = np.broadcast_to(self._model_index(names), gpus.shape)
        columns = self._type_index(self.device_types if device_types is None else device_types)
        if len(gpus) and not (np.isfinite(gpus) & (gpus > 0)).all():
            raise InputError(f"n_gpus is {gpus[~(gpus > 0)].tolist()[:1]}; expected a number of GPUs > 0.")
        pairs, inverse = np.unique(np.stack([which.astype(np.float64), gpus]), axis=1, return_inverse=True)
        rates, measured = self._estimates(pairs[0].astype(np.intp), pairs[1])
        self._tell(pairs[:, ~measured[:, columns].all(axis=1)], strict=strict, warn=warn)
        answer: Floats = rates[:, columns][inverse.reshape(-1)]
        return answer

    def _estimates(self, which: NDArray[np.intp], gpus: Floats) -> tuple[Floats, Bools]:
        """Return steps/s (N, T), and where they were measured or cannot be told from others (N, T)."""
        known = ~np.isnan(self.alone)[which]  # (N, S, T)
        distance = np.where(known, np.abs(self.n_gpus[None, :] - gpus[:, None])[:, :, None], np.inf)
        nearest = distance.argmin(axis=1)  # the first of equals is the smaller number
        rows, types = np.arange(len(which))[:, None], np.arange(len(self.device_types))[None, :]
        rates = self.alone[which[:, None], nearest, types] * gpus[:, None] / self.n_gpus[nearest]
        exact: Bools = ~known[rows, nearest, types] | (distance[rows, nearest, types] == 0)
        return np.nan_to_num(rates), exact

    def _tell(self, estimated: Floats, *, strict: bool, warn: bool) -> None:
        if self.in_proportion or not estimated.shape[1] or not (strict or warn):
            return
        by_count: dict[float, list[str]] = {}
        for k, n in estimated.T:
            by_count.setdefault(float(n), []).append(self.models[int(k)])
        named = "; ".join(f"on {n:g} GPUs: {_some(names)}" for n, names in sorted(by_count.items()))
        if strict:
            raise InputError(
                f"no measured throughput {named}. Give a file that has it (--throughputs FILE), or drop --strict to "
                "estimate it per GPU from the nearest measured number of GPUs."
            )
        warnings.warn(
            f"throughput estimated per GPU from the nearest measured number of GPUs {named}.",
            EstimatedThroughput,
            stacklevel=3,
        )

    def pair(self, model: str, other: str, *, n_gpus: int = 1, device_type: str) -> tuple[float, float]:
        """Return the steps/s of two jobs that share their GPUs; (0, 0) where they cannot.

        Raises
        ------
        InputError
            If a name is unknown, this table has no pairs, or this pair was not measured.
        """
        if self.shared is None:
            raise InputError("these throughputs have no pairs; read Gavel's file with --throughputs FILE.")
        a, b = self._model_index([model, other])
        (t,) = self._type_index([device_type])
        at = np.flatnonzero(self.n_gpus == n_gpus)
        mine, others = (self.shared[i, at, j, t].sum() if len(at) else np.nan for i, j in ((a, b), (b, a)))
        if np.isnan(mine) or np.isnan(others):
            raise InputError(f"no measured throughput of {model} with {other} on {n_gpus} {device_type} GPUs.")
        return float(mine), float(others)

    def has(self, model: str) -> bool:
        """Return whether a model is in the table."""
        return model in self.models

    def _model_index(self, names: Sequence[str]) -> NDArray[np.intp]:
        place = {name: k for k, name in enumerate(self.models)}
        for name in dict.fromkeys(names):
            if name not in place:
                raise unknown("model in the throughputs", name, self.models)
        return np.array([place[name] for name in names], np.intp)

    def _type_index(self, types: Sequence[str]) -> NDArray[np.intp]:
        place = {name.lower(): t for t, name in enumerate(self.device_types)}
        whole = tuple(
            "" if name.endswith("_unconsolidated") else name for name in self.device_types
        )  # v100_unconsolidated is no kind of GPU
        found = np.array(
            [place.get(name.lower(), t) for name, t in zip(types, type_index(types, whole), strict=True)], np.intp
        )
        for name, t in zip(types, found, strict=True):
            if t < 0:
                raise unknown("device type in the throughputs", name, self.device_types)
        return found


@cache
def _published_rows() -> tuple[list[tuple[str, int, list[float]]], tuple[str, ...]]:
    lines = [line for line in PUBLISHED.read_text("utf-8").splitlines() if not line.startswith("#")]
    types = tuple(lines[0].split(",")[2:])
    cells = (line.split(",") for line in lines[1:])
    return [(row[0], int(row[1]), [float(value) for value in row[2:]]) for row in cells], types


def _json(path: Path) -> dict[str, Any]:
    import json

    refuse_unreadable(path, expected="a file of throughputs")
    try:
        raw = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a file of throughputs.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}); expected Gavel's simulation_throughputs.json.") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: holds a {type(raw).__name__}; expected {{device type: {{job: throughputs}}}}.")
    return raw


def _parsed(kind: str, jobs: object, faults: list[str]) -> Entries:
    if not isinstance(jobs, dict):
        faults.append(f"{kind}: holds a {type(jobs).__name__}; expected {{\"('MODEL', GPUs)\": ...}}")
        return {}
    parsed: dict[tuple[str, int], dict[Any, Any]] = {}
    for text, others in jobs.items():
        key = _key(text)
        if key is None or not isinstance(others, dict):
            faults.append(f'{kind} {text}: expected a key "(\'MODEL\', GPUs)" that holds {{"null": steps/s, ...}}')
            continue
        parsed[key] = _parsed_row(f"{kind} {text}", others, faults)
        if len(faults) > 10 * MAX_LISTED:
            break
    return parsed


def _some(names: Sequence[str], *, most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _parsed_row(where: str, others: dict[str, Any], faults: list[str]) -> dict[Any, Any]:
    row: dict[Any, Any] = {}
    for other, value in others.items():
        key = None if other == "null" else _key(other)
        if other != "null" and key is None:
            faults.append(f"{where} {other}: expected null or \"('MODEL', GPUs)\"")
        elif not _is_rate(value, pair=key is not None):
            faults.append(
                f"{where} {other}: is {value}; expected {'two numbers' if key else 'a number'} >= 0 "
                "(0: cannot run there; leave the key out where it was not measured)"
            )
        else:
            row[key] = value
    return row


def _key(text: str) -> tuple[str, int] | None:
    match = _KEY.match(text)
    return (match[1], int(match[2])) if match and int(match[2]) > 0 else None


def _is_rate(value: object, *, pair: bool) -> bool:
    if pair:
        return isinstance(value, list) and len(value) == 2 and all(_is_rate(v, pair=False) for v in value)
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
