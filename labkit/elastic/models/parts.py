"""Parts that several families share: a norm without batch statistics, initial weights, a convolution with both."""

from __future__ import annotations

from torch import Tensor, nn


def group_norm(n_channels: int) -> nn.GroupNorm:
    """Return the norm that replaces the batch normalisation of published networks.

    Groups of at least 16 channels [1]_, over one sample: a sample's gradient does not depend on its batch.

    References
    ----------
    .. [1] Wu and He, "Group normalization", ECCV 2018, table 3.
    """
    most = max(1, n_channels // 16)
    return nn.GroupNorm(next(n for n in range(most, 0, -1) if n_channels % n == 0), n_channels)


def he_weights(model: nn.Module) -> None:
    """Draw the weights of convolutions and linear layers so that ReLUs keep the variance [1]_; biases are 0.

    References
    ----------
    .. [1] He et al., "Delving deep into rectifiers", ICCV 2015, eq. 10.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class ConvNormReLU(nn.Module):
    """A convolution that keeps the size of the image (or divides it by the stride), a norm, a ReLU."""

    def __init__(
        self, n_in: int, n_out: int, *, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, groups=groups, bias=bias)
        self.norm = group_norm(n_out)

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, n_out, px, px)."""
        y: Tensor = self.norm(self.conv(x)).relu()
        return y


def mean_of_image(x: Tensor) -> Tensor:
    """Return the mean over the pixels: (B, C, px, px) -> (B, C)."""
    return x.mean(dim=(2, 3))
