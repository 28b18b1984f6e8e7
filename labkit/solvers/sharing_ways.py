"""Ways to run: a group of like jobs alone in a column, or two groups on the same devices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Bools, Floats, Ints

DIGITS = 12
"""Significant digits to which the numbers of jobs must agree to be like each other."""

NOBODY = -1
"""In place of the second group of a way alone."""


@dataclass(frozen=True, eq=False, slots=True)
class Pairing:
    """Which jobs can share devices, and how fast.

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
        k = len(speed)
        if speed.shape != (k, k, n_columns):
            raise InputError(f"pair_speed has shape {speed.shape}; expected (kinds, kinds, {n_columns}).")
        if not 0 <= kind.min() <= kind.max() < k:
            raise InputError(f"kinds go from {kind.min()} to {kind.max()}; pair_speed has kinds 0 to {k - 1}.")
        known = np.nan_to_num(speed, nan=0.0, posinf=np.inf)
        if not 0 <= known.min() <= known.max() < np.inf:
            raise InputError(f"pair_speed holds {known.min() if known.min() < 0 else np.inf}; expected speeds >= 0.")
        if not 0 < scale.min() <= scale.max() < np.inf:
            j = int(np.flatnonzero(~((scale > 0) & (scale < np.inf)))[0])
            raise InputError(f"the scale of job {j} is {scale[j]}; expected more than 0.")
        both = (known > 0) & (known.transpose(1, 0, 2) > 0)
        return cls(kind, np.where(both, known, 0.0), scale)

    def worth(self, pairs: Ints) -> Floats:
        """Return what all of its time is worth to either member of pairs (P, 2) in each column, (P, 2, V)."""
        kind, scale = self.kind[pairs], self.scale[pairs]
        beside = self.speed[kind, kind[:, ::-1]]
        worth: Floats = scale[:, :, None] * beside
        return worth


@dataclass(frozen=True, eq=False, slots=True)
class Groups:
    """Jobs that are alike in everything: they may as well have equal shares.

    Attributes
    ----------
    of : array
        (J,) the group of each job; groups are numbered by their first jobs.
    first : array
        (G,) position of that job.
    n : array
        (G,) jobs in each.
    """

    of: Ints
    first: Ints
    n: Ints

    @classmethod
    def of_like(cls, *columns: Floats | Ints) -> Self:
        """Return the groups of jobs with equal rows in all columns, (J,) or (J, N) each."""
        table = np.column_stack([_rounded(np.asarray(column, np.float64)) for column in columns])
        _, first, of = np.unique(table, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(np.argsort(first, kind="stable"), kind="stable")
        group = order[of.reshape(-1)]
        return cls(group.astype(np.int32), np.sort(first), np.bincount(group))

    def __len__(self) -> int:
        return len(self.n)


@dataclass(frozen=True, eq=False, slots=True)
class SharingColumns:
    """All ways to run that could be of use, W of them.

    Attributes
    ----------
    a, b : array
        (W,) the groups; b is -1 for one alone, and may be a for two jobs of one group.
    column : array
        (W,) where.
    rate_a, rate_b : array
        (W,) what all of its time is worth to a member of each; 0 for none.
    """

    a: Ints
    b: Ints
    column: Ints
    rate_a: Floats
    rate_b: Floats

    @classmethod
    def of(cls, groups: Groups, value: Floats, size: Floats, pairing: Pairing) -> Self:
        """Return all ways, without pairs that gain nothing over taking turns; value (J, V), size (J,)."""
        alone = value[groups.first]
        g, v = np.nonzero(alone > 0)
        single = (g, np.full(len(g), NOBODY), v, alone[g, v], np.zeros(len(g)))
        parts = zip(single, _pairs(groups, alone, size[groups.first], pairing), strict=True)
        a, b, column, rate_a, rate_b = (np.concatenate(part) for part in parts)
        return cls(a.astype(np.int32), b.astype(np.int32), column.astype(np.int32), rate_a, rate_b)

    def __len__(self) -> int:
        return len(self.a)

    def in_units(self, unit: Floats) -> SharingColumns:
        """Return the same ways with values in units of each group, (G,)."""
        return replace(self, rate_a=self.rate_a / unit[self.a], rate_b=self.rate_b / unit[self.b])

    @property
    def paired(self) -> Bools:
        """(W,) whether two jobs share the devices."""
        return np.asarray(self.b != NOBODY, np.bool_)


def _pairs(groups: Groups, alone: Floats, size: Floats, pairing: Pairing) -> tuple[Ints, Ints, Ints, Floats, Floats]:
    """Return a, b, column and rates of all pairs of groups that gain anything; alone (G, V), size (G,)."""
    kind, scale = pairing.kind[groups.first], pairing.scale[groups.first]
    a, b = np.triu_indices(len(groups))
    fits = (size[a] == size[b]) & ((a != b) | (groups.n[a] > 1))
    a, b = a[fits], b[fits]
    found = []
    for v in range(alone.shape[1]):
        rate_a, rate_b = scale[a] * pairing.speed[kind[a], kind[b], v], scale[b] * pairing.speed[kind[b], kind[a], v]
        with np.errstate(divide="ignore", invalid="ignore"):
            turns = rate_a / alone[a, v] + rate_b / alone[b, v]  # time that both need alone for as much
        gains = np.flatnonzero((rate_a > 0) & ~(turns <= 1.0))
        found.append((a[gains], b[gains], np.full(len(gains), v), rate_a[gains], rate_b[gains]))
    first, second, column, rate_a, rate_b = (np.concatenate(part) for part in zip(*found, strict=True))
    return first, second, column, rate_a, rate_b


def _rounded(numbers: Floats) -> Floats:
    """Return numbers to `DIGITS` significant digits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digit = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(numbers))))
        rounded: Floats = np.round(numbers * digit) / digit
    return np.asarray(np.where(np.isfinite(rounded), rounded, numbers), np.float64)
