"""VGG-16: five stages of 3x3 convolutions, and three large linear layers that hold most parameters.

Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015, table 1 D.
"""

from __future__ import annotations

from torch import Tensor, nn

from labkit.elastic.models.parts import he_weights
from labkit.elastic.models.sizes import Size

VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels, and convolutions, of each stage."""
VGG_HIDDEN = 4096


class VGG(nn.Module):
    """Scores of classes (B, C) from images (B, 3, px, px); it has no norm, as published."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        n = size.n_channels
        self.features = nn.Sequential()
        for published, n_convolutions in VGG_STAGES:
            n_out = size.units(published, at_least=4)
            for _ in range(n_convolutions):
                self.features.extend([nn.Conv2d(n, n_out, 3, padding=1), nn.ReLU()])
                n = n_out
            self.features.append(nn.MaxPool2d(2))
        hidden, px_left = size.units(VGG_HIDDEN, at_least=16), size.px // 2 ** len(VGG_STAGES)
        self.classify = nn.Sequential(
            nn.Linear(n * px_left**2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, size.n_classes),
        )
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.classify(self.features(images).flatten(1))
        return scores
