"""Text CNN: convolutions over three, four and five words, and the maximum of each.

Kim, "Convolutional neural networks for sentence classification", EMNLP 2014; 18,766 words of 300 as on movie reviews.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.elastic.models.parts import he_weights
from labkit.elastic.models.sizes import Size

WORD_EMBEDDING, FILTERS, WINDOWS = 300, 100, (3, 4, 5)


class TextCNN(nn.Module):
    """Scores of classes (B, C) from sentences (B, T)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        embedding, filters = size.units(WORD_EMBEDDING, at_least=8), size.units(FILTERS, at_least=8)
        self.embed = nn.Embedding(size.n_words, embedding)
        self.windows = nn.ModuleList(nn.Conv1d(embedding, filters, window) for window in WINDOWS)
        self.classify = nn.Linear(filters * len(WINDOWS), size.n_classes)
        he_weights(self)

    def forward(self, sentences: Tensor) -> Tensor:
        """Return the scores."""
        words = self.embed(sentences).transpose(1, 2)
        strongest = [window(words).relu().amax(dim=2) for window in self.windows]
        scores: Tensor = self.classify(torch.cat(strongest, dim=1))
        return scores
