"""A small GPT: tied weights, decay on matrices alone, clipping by norm, warm-up and cosine, windows at random."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from made import tokens
from torch import Tensor, nn
from torch.utils.data import Dataset

WORDS, LENGTH, WIDTH, HEADS, LAYERS = 40, 16, 32, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.fc, self.out, self.drop = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (part.view(b, t, HEADS, -1).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.drop(self.proj(y))
        return x + self.drop(self.out(F.gelu(self.fc(self.ln2(x)))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH), nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.ln, self.head = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, WORDS, bias=False)
        self.wte.weight = self.head.weight
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.ln(self.blocks(self.drop(self.wte(x) + self.wpe(torch.arange(x.shape[1]))))))


class Windows(Dataset[Any]):
    def __init__(self) -> None:
        self.text = tokens(4000, WORDS)

    def __len__(self) -> int:
        return len(self.text) - LENGTH

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.text[i : i + LENGTH], self.text[i + 1 : i + 1 + LENGTH]


def model() -> nn.Module:
    return GPT()


def data() -> Any:
    return Windows()


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def optimizer(model: nn.Module) -> Any:
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))


def rate(step: int, *, warm: int = 10, last: int = 100, floor: float = 0.1) -> float:
    if step < warm:
        return (step + 1) / (warm + 1)
    done = min(1.0, (step - warm) / (last - warm))
    return floor + 0.5 * (1 + math.cos(math.pi * done)) * (1 - floor)


def scheduler(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


options = {"batch": 16, "clip_norm": 1.0}
