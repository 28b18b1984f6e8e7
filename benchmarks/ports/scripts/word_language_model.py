"""A recurrent language model: its state is carried from window to window, its gradient clipped by its norm."""

import os
from typing import Any

import torch
import torch.nn.functional as F
from made import tokens
from torch import Tensor, nn
from torch.utils.data import Dataset

LANES, WINDOW, WINDOWS, WORDS, WIDTH = 16, 8, 40, 50, 24
SHARDS = int(os.environ.get("SHARDS", "8"))


class RNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(WORDS, WIDTH)
        self.rnn, self.decoder = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2), nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        for name in ("h", "c"):
            self.register_buffer(name, torch.zeros(2, LANES // SHARDS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out, (h, c) = self.rnn(self.drop(self.encoder(x)), (self.h, self.c))
        self.h, self.c = h.detach(), c.detach()
        return F.log_softmax(self.decoder(self.drop(out)).view(-1, WORDS), dim=1)


class Lanes(Dataset[Any]):
    """Windows of the lanes of a text; a batch is the next window of all lanes."""

    def __init__(self) -> None:
        self.text = tokens(LANES * (WINDOW * WINDOWS + 1), WORDS).view(LANES, -1)

    def __len__(self) -> int:
        return LANES * WINDOWS

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        window, lane = divmod(i, LANES)
        first = window * WINDOW
        row = self.text[lane]
        return row[first : first + WINDOW], row[first + 1 : first + 1 + WINDOW]


def model() -> nn.Module:
    return RNN()


def data() -> Any:
    return Lanes()


def loss(model: Any, batch: Any, step: int) -> Tensor:
    if step % WINDOWS == 0:
        model.h.zero_(), model.c.zero_()
    x, y = batch
    return F.nll_loss(model(x.t()), y.t().reshape(-1))


def optimizer(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=5.0)


def scheduler(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=0)


options = {
    "batch": LANES, "shards": SHARDS, "shuffle": False, "clip_norm": 0.25, "per_shard": ("h", "c"),
    "scheduler_every": WINDOWS,
}  # fmt: skip
