"""DSSM: two towers map a query and documents to one space, where the clicked document is nearest.

Shen et al., "A latent semantic model with convolutional-pooling structure for information retrieval", CIKM 2014: letter
trigrams in, cosine out, the clicked document against four others. Bags of trigrams instead of its convolution, and
embeddings of 64, make the published 1.5 million parameters.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from labkit.elastic.models.sizes import Size

TRIGRAM_EMBEDDING, TOWER_HIDDEN, TOWER_OUT = 64, 256, 128
SHARPNESS = 10.0  # gamma of the softmax over cosines


class DSSM(nn.Module):
    """Scores of documents (B, D) from the trigrams of a query and D documents, in one tensor (B, 1 + D, T)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        embedding, hidden, out = (size.units(n, at_least=16) for n in (TRIGRAM_EMBEDDING, TOWER_HIDDEN, TOWER_OUT))
        self.embed = nn.Embedding(size.n_words, embedding)
        self.query, self.document = (
            nn.Sequential(
                nn.Linear(embedding, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, out)
            )
            for _ in range(2)
        )

    def forward(self, texts: Tensor) -> Tensor:
        """Return the scores."""
        bags = self.embed(texts).mean(dim=2)
        query, documents = self.query(bags[:, :1]), self.document(bags[:, 1:])
        return SHARPNESS * F.cosine_similarity(query, documents, dim=2)
