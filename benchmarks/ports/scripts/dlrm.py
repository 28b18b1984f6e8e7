"""Recommendations: bags of categories, their products, and Adagrad with one number for each row of a table."""

from typing import Any

import torch
import torch.nn.functional as F
from made import draws
from torch import Tensor, nn

ROWS, WIDTH, DENSE = (200, 50, 300), 8, 5


class RowAdagrad(torch.optim.Optimizer):
    """Adagrad whose sums are means over a row (of a vector: over all of it)."""

    def __init__(self, params: Any, lr: float, eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["sum"] = torch.zeros(p.shape[0], *[1] * (p.dim() - 1))
                square = p.grad.pow(2)
                state["sum"] += square.flatten(1).mean(1, keepdim=True) if p.dim() > 1 else square.mean()
                p.addcdiv_(p.grad, state["sum"].sqrt().add(group["eps"]), value=-group["lr"])


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum") for rows in ROWS)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 16), nn.ReLU(), nn.Linear(16, WIDTH), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(WIDTH + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, bags: Tensor) -> Tensor:
        x = self.bottom(dense)
        parts = torch.stack([x, *(table(bags[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(parts, parts.transpose(1, 2))
        i, j = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat((x, products[:, i, j]), 1)).squeeze(1)


def model() -> nn.Module:
    return DLRM()


def data() -> Any:
    rng = draws(0)
    dense = torch.randn(640, DENSE, generator=rng)
    bags = torch.stack([torch.randint(rows, (640, 3), generator=rng) for rows in ROWS], 1)
    return dense, bags, ((dense[:, 0] + (bags[:, 0, 0] % 2)) > 0.5).float()


def loss(model: nn.Module, batch: Any) -> Tensor:
    dense, bags, clicked = batch
    return F.binary_cross_entropy_with_logits(model(dense, bags), clicked)


def optimizer(model: Any) -> Any:
    return RowAdagrad(model.parameters(), lr=0.05)


options = {"batch": 64}
