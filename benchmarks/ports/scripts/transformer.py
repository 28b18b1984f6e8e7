"""Translation with padding: a loss per token that counts, label smoothing, the rate of "Attention is all you need"."""

from typing import Any

import torch
import torch.nn.functional as F
from made import draws
from torch import Tensor, nn

WORDS, LENGTH, WIDTH, PAD, WARM = 30, 10, 32, 0, 40


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH, padding_idx=PAD), nn.Embedding(LENGTH, WIDTH)
        self.net = nn.Transformer(WIDTH, 4, 1, 1, 64, dropout=0.1, batch_first=True)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        place = self.place(torch.arange(source.shape[1]))
        n = target.shape[1]
        hidden = self.net(
            self.embed(source) + place, self.embed(target) + place[:n],
            tgt_mask=torch.triu(torch.ones(n, n, dtype=torch.bool), 1), src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD, memory_key_padding_mask=source == PAD,
        )  # fmt: skip
        return self.out(hidden)


def model() -> nn.Module:
    return Translator()


def data() -> Any:
    rng = draws(0)
    source = torch.randint(2, WORDS, (640, LENGTH), generator=rng)
    lengths = torch.randint(3, LENGTH + 1, (640, 1), generator=rng)
    source = source.masked_fill(torch.arange(LENGTH) >= lengths, PAD)
    return source, source.roll(1, 1).masked_fill(source == PAD, PAD)


def loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    source, target = batch
    given, wanted = target[:, :-1], target[:, 1:]
    out = model(source, given)
    losses = F.cross_entropy(
        out.flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="sum"
    )
    return losses, (wanted != PAD).sum()


def optimizer(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=WIDTH**-0.5, betas=(0.9, 0.98), eps=1e-9)


def rate(step: int) -> float:
    return min((step + 1) ** -0.5, (step + 1) * WARM**-1.5)


def scheduler(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


options = {"batch": 32}
