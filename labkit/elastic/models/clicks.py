"""Wide&Deep and xDeepFM: will a user click? From 39 features, one of each field.

Cheng et al., "Wide & deep learning for recommender systems", DLRS 2016; Lian et al., "xDeepFM", KDD 2018. Layers as the
catalogue counts them: embeddings of 10, two layers of 400, three interaction layers of 200.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from labkit.elastic.models.parts import he_weights
from labkit.elastic.models.sizes import Size

FEATURE_EMBEDDING, DEEP_HIDDEN, INTERACTIONS, N_INTERACTION_LAYERS = 10, 400, 200, 3

STD = 0.1
"""Standard deviation of the initial embeddings."""


def beginning(features: Tensor, n: int) -> Tensor:
    """Return the initial embedding of each feature (...), (..., n): uniform numbers of standard deviation STD.

    >>> numbers = beginning(torch.arange(1000), 10)
    >>> tuple(numbers.shape), round(float(numbers.std()), 2), abs(float(numbers.mean())) < 0.01
    ((1000, 10), 0.1, True)
    """
    mixed = features.long().unsqueeze(-1) * n + torch.arange(n, device=features.device)
    for factor in (1_103_515_245, 747_796_405):
        mixed = (mixed * factor + 12_345) & 0x7FFF_FFFF
        mixed = mixed ^ (mixed >> 15)
    return (mixed.double() * (2 / 2**31) - 1).float() * (STD * 3**0.5)


class WideDeep(nn.Module):
    """Log-odds of a click (B,) from features (B, fields): a weight of each, plus the output of two layers."""

    def __init__(self, size: Size, *, growing: bool = False) -> None:
        super().__init__()
        self.growing = growing
        hidden = size.units(DEEP_HIDDEN, at_least=16)
        self.wide = nn.Embedding(size.n_words, 1)
        self.embed = nn.Embedding(size.n_words, FEATURE_EMBEDDING)
        self.deep = nn.Sequential(
            nn.Linear(size.length * FEATURE_EMBEDDING, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        he_weights(self)
        nn.init.zeros_(self.wide.weight)
        if growing:
            nn.init.zeros_(self.embed.weight)
        else:
            nn.init.normal_(self.embed.weight, std=STD)

    def forward(self, features: Tensor) -> Tensor:
        """Return the log-odds."""
        return self.log_odds(features, self.embedded(features))

    def embedded(self, features: Tensor) -> Tensor:
        """Return the embeddings of features (B, fields): (B, fields, FEATURE_EMBEDDING).

        A growing table stores the learned difference to the initial embedding, which follows from the feature's number.
        So the row of a feature that no sample has had is zero, and takes no memory (`labkit.elastic.server.block`).
        """
        learned: Tensor = self.embed(features)
        return learned + beginning(features, FEATURE_EMBEDDING) if self.growing else learned

    def log_odds(self, features: Tensor, embedded: Tensor) -> Tensor:
        """Return the log-odds from features and their embeddings (B, fields, FEATURE_EMBEDDING)."""
        odds: Tensor = self.wide(features).sum(dim=(1, 2)) + self.deep(embedded.flatten(1)).squeeze(1)
        return odds


class XDeepFM(WideDeep):
    """Wide&Deep plus products of features: a layer mixes each of its inputs times each field, per dimension."""

    def __init__(self, size: Size, *, growing: bool = False) -> None:
        super().__init__(size, growing=growing)
        n, n_fields = size.units(INTERACTIONS, at_least=8), size.length
        n_inputs = [n_fields] + [n] * (N_INTERACTION_LAYERS - 1)
        self.mix = nn.ParameterList(torch.empty(n, k * n_fields) for k in n_inputs)
        for weights in self.mix:
            nn.init.xavier_normal_(weights)
        self.add = nn.Linear(n * N_INTERACTION_LAYERS, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the log-odds."""
        fields = self.embedded(features)
        found, x = [], fields
        for weights in self.mix:
            products = torch.einsum("bid,bjd->bijd", x, fields).flatten(1, 2)  # (B, inputs x fields, FEATURE_EMBEDDING)
            x = F.conv1d(products, weights.unsqueeze(2))
            found.append(x.sum(dim=2))
        odds: Tensor = self.log_odds(features, fields) + self.add(torch.cat(found, dim=1)).squeeze(1)
        return odds
