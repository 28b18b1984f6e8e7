"""A small classifier of 8x8 digits: one hidden layer."""

from __future__ import annotations

from torch import Tensor, nn

from labkit.elastic.models.parts import he_weights
from labkit.elastic.models.sizes import Size

DIGITS_HIDDEN = 64


class Digits(nn.Module):
    """Scores of classes (B, 10) from images (B, 1, 8, 8)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = size.units(DIGITS_HIDDEN, at_least=16)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(size.px**2, hidden), nn.ReLU(), nn.Linear(hidden, size.n_classes)
        )
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.layers(images)
        return scores
