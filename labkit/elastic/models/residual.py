"""ResNet-50 with the activation before the weights, as MXNet's example has it.

He et al., "Identity mappings in deep residual networks", ECCV 2016; 157 tensors of parameters, which is what Optimus
(EuroSys 2018, Table 3) distributes over parameter servers.
"""

from __future__ import annotations

from torch import Tensor, nn

from labkit.elastic.models.parts import group_norm, he_weights, mean_of_image
from labkit.elastic.models.sizes import Size

RESNET_STAGES = ((256, 3), (512, 4), (1024, 6), (2048, 3))
"""Channels, and blocks, of each stage."""


class ResidualBlock(nn.Module):
    """1x1 down to a quarter of the channels, 3x3, 1x1 up again, added to the input."""

    def __init__(self, n_in: int, n_out: int, *, n_inside: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.down = group_norm(n_in), nn.Conv2d(n_in, n_inside, 1, bias=False)
        self.norm2, self.conv = group_norm(n_inside), nn.Conv2d(n_inside, n_inside, 3, stride, 1, bias=False)
        self.norm3, self.up = group_norm(n_inside), nn.Conv2d(n_inside, n_out, 1, bias=False)
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if stride > 1 or n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, n_out, px / stride, px / stride)."""
        active = self.norm1(x).relu()
        y: Tensor = self.conv(self.norm2(self.down(active)).relu())
        y = self.up(self.norm3(y).relu())
        return y + (x if self.shortcut is None else self.shortcut(active))


class ResNet(nn.Module):
    """Scores of classes (B, C) from images (B, 3, px, px)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        n = size.units(64, multiple=8, at_least=8)
        self.whiten = group_norm(size.n_channels)
        self.stem, self.norm = nn.Conv2d(size.n_channels, n, 7, 2, 3, bias=False), group_norm(n)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential()
        for stage, (published, n_blocks) in enumerate(RESNET_STAGES):
            n_out, n_inside = (size.units(c, multiple=8, at_least=8) for c in (published, published // 4))
            for b in range(n_blocks):
                stride = 2 if stage > 0 and b == 0 else 1
                self.blocks.append(ResidualBlock(n, n_out, n_inside=n_inside, stride=stride))
                n = n_out
        self.last_norm, self.classify = group_norm(n), nn.Linear(n, size.n_classes)
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        x = self.pool(self.norm(self.stem(self.whiten(images))).relu())
        x = self.last_norm(self.blocks(x)).relu()
        scores: Tensor = self.classify(mean_of_image(x))
        return scores
