"""Ways to run: a group of like jobs alone in a column, or two groups on the same devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Bools, Floats, Ints

DIGITS = 12
"""Significant digits to which the speeds of jobs must agree to be like each other."""

NOBODY = -1
"""In place of the second group of a way alone."""


@dataclass(frozen=True, eq=False, slots=True)
class Pairing:
    """Who can share devices with whom, and how fast.

    Attributes
    ----------
    kind : array
        (J,) the kind of each job.
    speed : array
        (K, K, V) of the first kind beside the second in each column; 0: they cannot share it.
    scale : array
        (J,) value of one unit of speed.
    """

    kind: Ints
    speed: Floats
    scale: Floats

    @classmethod
    def checked(cls, kind: Ints, speed: Floats, scale: Floats, n_columns: int) -> Self:
        """Return it, with 0 for NaN and where only one of two could run.

        Raises
        ------
        InputError
            If shapes differ, a kind is unknown, or a number is negative.
        """
        k = speed.shape[0]
        if speed.shape != (k, k, n_columns):
            raise InputError(f"pair_speed has shape {speed.shape}; expected (K, K, {n_columns}).")
        if len(kind) and not 0 <= kind.min() <= kind.max() < k:
            raise InputError(f"kinds go from {kind.min()} to {kind.max()}; pair_speed has kinds 0 to {k - 1}.")
        known = np.nan_to_num(speed, nan=0.0)
        if not (np.isfinite(known).all() and (known >= 0).all()):
            raise InputError(f"pair_speed holds {known.min() if known.min() < 0 else np.inf}; expected speeds >= 0.")
        if not (scale > 0).all():
            j = int(np.flatnonzero(~(scale > 0))[0])
            raise InputError(f"the scale of job {j} is {scale[j]}; expected > 0.")
        both = (known > 0) & (known.transpose(1, 0, 2) > 0)
        return cls(kind, np.where(both, known, 0.0), scale)


@dataclass(frozen=True, eq=False, slots=True)
class Groups:
    """Jobs that differ only in how much they need: same size and, up to their scale, same speeds alone and in pairs.

    Attributes
    ----------
    of : array
        (J,) the group of each job.
    n : array
        (G,) jobs in each.
    size : array
        (G,) devices of a job.
    kind : array
        (G,) for the speeds of pairs.
    alone : array
        (G, V) speed relative to the fastest one alone.
    unit : array
        (J,) value of a relative speed of 1.
    """

    of: Ints
    n: Ints
    size: Floats
    kind: Ints
    alone: Floats
    unit: Floats

    @classmethod
    def by_likeness(cls, value: Floats, size: Floats, pairing: Pairing | None, *, apart: Bools, others: Floats) -> Self:
        """Return the groups of jobs.

        Parameters
        ----------
        value : array
            (J, V) of each job alone.
        size : array
            (J,) devices.
        pairing : Pairing or None
            Kinds and scales.
        apart : array
            (J,) jobs that must have a group of their own.
        others : array
            (J, N) what else must be the same in a group.
        """
        unit = value.max(axis=1)
        idle = unit <= 0
        n_jobs = len(value)
        kind = np.zeros(n_jobs, np.int32) if pairing is None else pairing.kind
        scale = np.where(idle, 1.0, unit) if pairing is None else pairing.scale
        relative = value / scale[:, None]
        own = np.where(apart, np.arange(1, n_jobs + 1), 0)
        table = np.column_stack([kind, size, own, _rounded(relative), _rounded(others)])
        _, first, of = np.unique(table, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(np.argsort(first, kind="stable"), kind="stable")  # groups by their first job
        group, first = order[of.reshape(-1)], np.sort(first)
        fastest = np.where(idle, scale, unit)
        alone = relative[first] / (fastest / scale)[first][:, None]
        return cls(
            of=group.astype(np.int32),
            n=np.bincount(group, minlength=len(first)),
            size=size[first],
            kind=kind[first],
            alone=alone,
            unit=fastest,
        )

    def __len__(self) -> int:
        return len(self.n)


@dataclass(frozen=True, eq=False, slots=True)
class Ways:
    """All ways to run that could be of use, W of them.

    Attributes
    ----------
    a, b : array
        (W,) the groups; b is -1 for one alone, and may be a for two jobs of one group.
    column : array
        (W,) where.
    rate_a, rate_b : array
        (W,) relative speed of a member of each; 0 for nobody.
    size : array
        (W,) devices, taken once.
    """

    a: Ints
    b: Ints
    column: Ints
    rate_a: Floats
    rate_b: Floats
    size: Floats

    @classmethod
    def of(cls, groups: Groups, pairing: Pairing | None) -> Self:
        """Return all ways, without pairs that are no faster than their members taking turns."""
        g, v = np.nonzero(groups.alone > 0)
        nobody = np.full(len(g), NOBODY)
        parts = [(g, nobody, v, groups.alone[g, v], np.zeros(len(g)))]
        if pairing is not None:
            parts.append(_pairs(groups, pairing))
        a, b, column, rate_a, rate_b = (np.concatenate(part) for part in zip(*parts, strict=True))
        return cls(a.astype(np.int32), b.astype(np.int32), column.astype(np.int32), rate_a, rate_b, groups.size[a])

    def __len__(self) -> int:
        return len(self.a)

    @property
    def paired(self) -> Bools:
        """(W,) whether two jobs share the devices."""
        return np.asarray(self.b != NOBODY, np.bool_)


def _pairs(groups: Groups, pairing: Pairing) -> tuple[Ints, Ints, Ints, Floats, Floats]:
    """Return a, b, column and rates of all pairs that gain anything over taking turns."""
    n_kinds = len(pairing.speed)
    possible = np.asarray((pairing.speed > 0).any(axis=2), np.bool_)
    a, b = np.triu_indices(len(groups))
    kind_a, kind_b = groups.kind[a], groups.kind[b]
    fits = possible[kind_a, kind_b] & (groups.size[a] == groups.size[b]) & ((a != b) | (groups.n[a] > 1))
    a, b, code = a[fits], b[fits], (kind_a * n_kinds + kind_b)[fits]
    unit = np.ones(len(groups))
    unit[groups.of] = groups.unit / pairing.scale  # speed of the fastest way alone
    speed = pairing.speed.reshape(n_kinds * n_kinds, -1)
    back = pairing.speed.transpose(1, 0, 2).reshape(n_kinds * n_kinds, -1)
    rate_a, rate_b = speed[code] / unit[a][:, None], back[code] / unit[b][:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        turns = rate_a / groups.alone[a] + rate_b / groups.alone[b]  # time that both need alone for as much
    row, column = np.nonzero((rate_a > 0) & ~(turns <= 1.0))
    return a[row], b[row], column, rate_a[row, column], rate_b[row, column]


def _rounded(numbers: Floats) -> Floats:
    """Return numbers to `DIGITS` significant digits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digit = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(numbers))))
        rounded: Floats = np.round(numbers * digit) / digit
    return np.asarray(np.where(np.isfinite(rounded), rounded, numbers), np.float64)
