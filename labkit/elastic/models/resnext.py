"""ResNeXt for 32x32 images: 110 layers whose 3x3 convolutions work in eight groups.

Xie et al., "Aggregated residual transformations for deep neural networks", CVPR 2017; the depth and the parameters are
those of DL2's Table 1 (1.73 million).
"""

from __future__ import annotations

from torch import Tensor, nn

from labkit.elastic.models.parts import ConvNormReLU, group_norm, he_weights, mean_of_image
from labkit.elastic.models.sizes import Size

N_GROUPS = 8
RESNEXT_STAGES = (72, 144, 288)
"""Channels of each stage: those that make 1.73 million parameters."""
N_BLOCKS = 12  # of each stage; 1 + 3 stages x 12 blocks x 3 layers + 1 = 110 layers


class GroupedBlock(nn.Module):
    """1x1 down to half the channels, 3x3 in groups, 1x1 up again, added to the input."""

    def __init__(self, n_in: int, n_out: int, *, stride: int) -> None:
        super().__init__()
        n_inside = N_GROUPS * max(1, n_out // (2 * N_GROUPS))
        self.down = ConvNormReLU(n_in, n_inside, kernel=1)
        self.conv = ConvNormReLU(n_inside, n_inside, kernel=3, stride=stride, groups=N_GROUPS)
        self.up, self.norm = nn.Conv2d(n_inside, n_out, 1, bias=False), group_norm(n_out)
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if stride > 1 or n_in != n_out else nn.Identity()
        nn.init.zeros_(self.norm.weight)  # a block begins as the identity, so that 110 layers learn from the start

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, n_out, px / stride, px / stride)."""
        y: Tensor = self.norm(self.up(self.conv(self.down(x))))
        total: Tensor = y + self.shortcut(x)
        return total.relu()


class ResNeXt(nn.Module):
    """Scores of classes (B, C) from images (B, 3, 32, 32); a narrow one has fewer blocks, too."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        n_blocks = min(N_BLOCKS, size.units(N_BLOCKS))
        n = size.units(RESNEXT_STAGES[0], multiple=8, at_least=8)
        self.stem = ConvNormReLU(size.n_channels, n, kernel=3)
        self.blocks = nn.Sequential()
        for stage, published in enumerate(RESNEXT_STAGES):
            n_out = size.units(published, multiple=8, at_least=8)
            for b in range(n_blocks):
                stride = 2 if stage > 0 and b == 0 else 1
                self.blocks.append(GroupedBlock(n, n_out, stride=stride))
                n = n_out
        self.classify = nn.Linear(n, size.n_classes)
        he_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.classify(mean_of_image(self.blocks(self.stem(images))))
        return scores
