"""Clicks: one feature of each of 39 fields, and a teacher with weights for single features and for pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.resources import Floats, Ints
from labkit.elastic.data.base import Generated
from labkit.elastic.data.draws import TEACHER, bits, uniforms, zipf

N_PAIRS: Final = 3
"""Fields 0 and 1, 2 and 3, 4 and 5."""
N_SINGLES: Final = 8
"""The fields after them."""


@dataclass(frozen=True)
class Clicks(Generated):
    """Features (B, fields), numbered through all fields, and clicks (B,) of 0.0 or 1.0, about one in three.

    Within a field few features are frequent, as in click logs. The log-odds are the sum of a weight for each feature of
    eight fields, and of a product of two signs for three pairs of fields; one sign alone has no information.
    """

    BIAS: ClassVar[float] = -2.5
    SINGLE: ClassVar[float] = 2.0
    CROSS: ClassVar[float] = 1.0

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return features and clicks."""
        n_fields, per_field = self.size.length, self.size.n_words // self.size.length
        drawn = self.drawn(index, n_fields + 1)
        features = zipf(drawn[:, :n_fields], per_field) + per_field * np.arange(n_fields)
        chance = 1 / (1 + np.exp(-self.log_odds(features)))
        return features, (uniforms(drawn[:, -1]) < chance).astype(np.float32)

    def log_odds(self, features: Ints) -> Floats:
        """Return the teacher's log-odds of a click, (B,)."""
        weights = self._weights(features[:, : 2 * N_PAIRS + N_SINGLES])
        odds = np.full(len(features), self.BIAS)
        for pair in range(N_PAIRS):
            odds += self.CROSS * np.sign(weights[:, 2 * pair] * weights[:, 2 * pair + 1])
        for single in range(
            2 * N_PAIRS, weights.shape[1]
        ):  # one by one, because the order of a sum over an axis may vary
            odds += self.SINGLE * weights[:, single]
        return odds

    def _weights(self, features: Ints) -> Floats:
        """Return the teacher's weights of features (B, F), from -1 to 1, computed without a table of all features."""
        drawn = bits(self.seed, features.ravel(), 1, stream=TEACHER)
        return 2 * uniforms(drawn.reshape(features.shape)) - 1
