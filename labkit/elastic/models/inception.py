"""Inception with a norm after each convolution, as MXNet's example has it: 278 tensors of parameters.

Ioffe and Szegedy, "Batch normalization", ICML 2015, figure 5; 257 classes as in Caltech-256.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.elastic.models.parts import ConvNormReLU, he_weights, mean_of_image
from labkit.elastic.models.sizes import Size

# 1x1, then 1x1 to 3x3, then 1x1 to two 3x3, then the 1x1 after pooling; no first and last: halves the image
MIXED = (
    (64, (64, 64), (64, 96), 32),
    (64, (64, 96), (64, 96), 64),
    (0, (128, 160), (64, 96), 0),
    (224, (64, 96), (96, 128), 128),
    (192, (96, 128), (96, 128), 128),
    (160, (128, 160), (128, 160), 128),
    (96, (128, 192), (160, 192), 128),
    (0, (128, 192), (192, 256), 0),
    (352, (192, 320), (160, 224), 128),
    (352, (192, 320), (192, 224), 128),
)


class Mixed(nn.Module):
    """Four branches side by side, their channels joined."""

    def __init__(self, n_in: int, *, single: int, pair: tuple[int, int], triple: tuple[int, int], pooled: int) -> None:
        super().__init__()
        stride = 1 if single else 2
        conv = _convolution
        self.branches = nn.ModuleList(
            [
                nn.Sequential(conv(n_in, pair[0], 1), conv(pair[0], pair[1], 3, stride)),
                nn.Sequential(
                    conv(n_in, triple[0], 1), conv(triple[0], triple[1], 3), conv(triple[1], triple[1], 3, stride)
                ),
            ]
        )
        if single:
            self.branches.append(conv(n_in, single, 1))
            self.branches.append(nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(n_in, pooled, 1)))
        else:
            self.branches.append(nn.MaxPool2d(3, 2, 1))
        self.n_out = pair[1] + triple[1] + (single + pooled if single else n_in)

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, n_out, px, px), or half the px where there is no single branch."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _convolution(n_in: int, n_out: int, kernel: int, stride: int = 1) -> ConvNormReLU:
    return ConvNormReLU(n_in, n_out, kernel=kernel, stride=stride, bias=True)


class Inception(nn.Module):
    """Scores of classes (B, C) from images (B, 3, px, px)."""

    def __init__(self, size: Size) -> None:
        super().__init__()

        def units(published: int) -> int:
            return size.units(published, at_least=4) if published else 0

        n, n_stem = units(192), units(64)
        self.stem = nn.Sequential(
            _convolution(size.n_channels, n_stem, 7, 2),
            nn.MaxPool2d(3, 2, 1),
            _convolution(n_stem, n_stem, 1),
            _convolution(n_stem, n, 3),
            nn.MaxPool2d(3, 2, 1),
        )
        self.mixed = nn.Sequential()
        for single, (a, b), (c, d), pooled in MIXED:
            block = Mixed(
                n, single=units(single), pair=(units(a), units(b)), triple=(units(c), units(d)), pooled=units(pooled)
            )
            self.mixed.append(block)
            n = block.n_out
        self.classify = nn.Linear(n, size.n_classes)
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.classify(mean_of_image(self.mixed(self.stem(images))))
        return scores
