"""Sequence to sequence with convolutions and attention, without recurrence.

Gehring et al., "Convolutional sequence to sequence learning", ICML 2017, section 3, which is what DL2's Table 1 cites;
three layers a side, of 256 channels, make the published 9.1 million parameters.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from labkit.elastic.models.sizes import Size

N_CONV_LAYERS, CHANNELS, KERNEL = 3, 256, 3
HALVED = math.sqrt(0.5)  # keeps the variance of a sum of two


class WordsAndPlaces(nn.Module):
    """The embedding of a word plus that of its position."""

    def __init__(self, n_words: int, length: int, channels: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(n_words, channels), nn.Embedding(length, channels)

    def forward(self, words: Tensor) -> Tensor:
        """Return (B, T, channels) of words (B, T)."""
        x: Tensor = self.word(words) + self.place.weight[: words.shape[1]]
        return x


class GatedConv(nn.Module):
    """A gated convolution over words (B, T, channels), added to its input; `causal`: it uses no later word."""

    def __init__(self, channels: int, *, causal: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, KERNEL)
        self.padding = (KERNEL - 1, 0) if causal else (KERNEL // 2, KERNEL // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, channels)."""
        y = F.glu(self.conv(F.pad(x.transpose(1, 2), self.padding)), dim=1)
        return (y.transpose(1, 2) + x) * HALVED


class TargetAttention(nn.Module):
    """Attention of each position of the target over the source."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.ask, self.answer = nn.Linear(channels, channels), nn.Linear(channels, channels)

    def forward(self, state: Tensor, target: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return (B, T, channels): source values (B, S, channels), weighted by attention to their keys."""
        asked = (self.ask(state) + target) * HALVED
        weights = torch.softmax(asked @ keys.transpose(1, 2), dim=2)
        y: Tensor = self.answer(weights @ values) * math.sqrt(keys.shape[1])  # as for equal weights
        return (y + state) * HALVED


class ConvSeq2Seq(nn.Module):
    """Scores of the next word (B, T, V) from a source and the target so far, both (B, T)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        channels = size.units(CHANNELS, at_least=16)
        self.source = WordsAndPlaces(size.n_words, size.length, channels)
        self.target = WordsAndPlaces(size.n_words, size.length, channels)
        self.encoder = nn.Sequential(*(GatedConv(channels, causal=False) for _ in range(N_CONV_LAYERS)))
        self.decoder = nn.ModuleList(GatedConv(channels, causal=True) for _ in range(N_CONV_LAYERS))
        self.attention = nn.ModuleList(TargetAttention(channels) for _ in range(N_CONV_LAYERS))
        self.score = nn.Linear(channels, size.n_words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the scores; `target` begins with the start of a sentence and lacks its last word."""
        embedded = self.source(source)
        keys = self.encoder(embedded)
        values = (keys + embedded) * HALVED
        y = wanted = self.target(target)
        for convolve, attend in zip(self.decoder, self.attention, strict=True):
            y = attend(convolve(y), wanted, keys, values)
        scores: Tensor = self.score(y)
        return scores
