"""A2C at the end of each interval: one update of each scheduler, from what it did in the interval (sec. IV-C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labkit.learning.marl.published.network import GraphBatch, Net, wires_of
from labkit.learning.marl.published.switches import Published
from labkit.learning.training import TrainingDivergedError
from labkit.schedulers.marl.published.form import Form
from labkit.schedulers.marl.published.graphs import Graph, Graphs, Numbers
from labkit.schedulers.marl.published.network import Params
from labkit.schedulers.marl.published.state import AgentView


@dataclass(eq=False)
class Interval:
    """What all schedulers did in an interval, and what each saw afterwards.

    Attributes
    ----------
    told, inner, inter : arrays
        As in `labkit.schedulers.marl.published.scheduler.Minds`.
    seen : list of list of AgentView
        By scheduler: one for each task, and the last one of after them.
    action, job : list of list of int
        By scheduler, for each task.
    """

    told: Numbers
    inner: Sequence[Numbers]
    inter: Numbers
    seen: list[list[AgentView]]
    action: list[list[int]]
    job: list[list[int]]

    @classmethod
    def of(cls, n_agents: int, *, told: Numbers, inner: Sequence[Numbers], inter: Numbers) -> Interval:
        """Return an interval in which no agent has acted yet."""
        return cls(told, inner, inter, *([[] for _ in range(n_agents)] for _ in range(3)))  # type: ignore[arg-type]

    @property
    def n_tasks(self) -> int:
        """Tasks of all schedulers."""
        return sum(map(len, self.action))


@dataclass(frozen=True, slots=True)
class Learned:
    """Losses of actor and critic, and the mean entropy of the policy in nats."""

    loss: float
    value_loss: float
    entropy: float


class Learner:
    """The networks of all schedulers while they learn; their first weights are drawn from torch's seed.

    Attributes
    ----------
    nets : list of Net
        One that all share, or one of each scheduler.
    n_updates : int
        Intervals from which they learned.
    """

    def __init__(self, switches: Published, form: Form, graphs: Graphs) -> None:
        self.switches, self.form, self.graphs = switches, form, graphs
        self.nets = [Net(form) for _ in range(1 if switches.shared else graphs.n_agents)]
        self.n_updates = 0
        self._optimizers = [torch.optim.Adam(net.parameters(), lr=switches.rate) for net in self.nets]
        self._inner = [wires_of(graph) for graph in graphs.inner]
        self._inter = wires_of(graphs.inter)
        self._alike: list[list[int]] = []
        for agent, graph in enumerate(graphs.inner):
            same = [group for group in self._alike if alike(graphs.inner[group[0]], graph)]
            if same:
                same[0].append(agent)
            else:
                self._alike.append([agent])

    def params(self) -> tuple[Params, ...]:
        """Return the weights for schedulers; learning changes them."""
        return tuple(net.params() for net in self.nets)

    def update(self, did: Interval, reward: Sequence[Numbers]) -> Learned | None:
        """Learn from an interval, in which the tasks of each scheduler were worth `reward`; None: it placed nothing.

        Raises
        ------
        TrainingDivergedError
            If a loss or a gradient is not finite; the weights are those before it.
        """
        told = []
        for k, (net, optimizer) in enumerate(zip(self.nets, self._optimizers, strict=True)):
            alike = self._alike if self.switches.shared else [[k]]
            busy = [[agent for agent in group if did.action[agent]] for group in alike]
            parts = [self._parts(net, did, group, reward) for group in busy if group]
            if parts:
                told.append(self._step(net, optimizer, [torch.cat(column) for column in zip(*parts, strict=True)]))
        if not told:
            return None
        self.n_updates += 1
        return Learned(*np.mean(told, axis=0).tolist())

    def _parts(self, net: Net, did: Interval, agents: Sequence[int], reward: Sequence[Numbers]) -> tuple[Tensor, ...]:
        """Return of each task of some schedulers -log pi A, the squared error of V, and the entropy, (B,)."""
        seen = [one for agent in agents for one in did.seen[agent]]
        batch = GraphBatch.of(seen, told=did.told, edges=did.inner, inter_edges=did.inter)
        inner, n_nodes = self._inner[agents[0]]
        scores, values = net(batch, inner, self._inter[0], n_nodes, self._inter[1])
        after = np.cumsum([len(did.seen[agent]) for agent in agents]) - 1  # what was seen after the last task
        now = torch.from_numpy(np.delete(np.arange(len(seen)), after))
        worth = torch.from_numpy(np.concatenate([reward[agent] for agent in agents]))
        action = torch.tensor([one for agent in agents for one in did.action[agent]])
        logs = torch.log_softmax(scores[now], dim=1)
        target = worth + self.switches.discount * values[now + 1].detach()
        error = target - values[now]  # A = r + gamma V(s') - V(s)
        mine = logs.gather(1, action[:, None])[:, 0]
        entropy = -(logs.exp() * logs.masked_fill(~batch.mask[now], 0.0)).sum(1)
        return -mine * error.detach(), error**2, entropy

    def _step(self, net: Net, optimizer: torch.optim.Optimizer, parts: Sequence[Tensor]) -> list[float]:
        actor, critic, entropy = (part.mean() for part in parts)
        loss = actor + critic - self.switches.entropy * entropy
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.get_total_norm([p.grad for p in net.parameters() if p.grad is not None])
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise TrainingDivergedError(
                f"the loss of step {self.n_updates + 1} is {float(loss.detach()):g} and its gradient {float(norm):g}; "
                "expected finite numbers. The weights are those before it; try a smaller rate."
            )
        if self.switches.clip:
            nn.utils.clip_grad_norm_(net.parameters(), self.switches.clip)
        optimizer.step()
        return [float(part.detach()) for part in (actor, critic, entropy)]

    # --- what is kept

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on, for `torch.save`."""
        parts: list[Any] = [*self.nets, *self._optimizers]
        return {"n_updates": self.n_updates, "parts": [part.state_dict() for part in parts]}

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        parts: list[Any] = [*self.nets, *self._optimizers]
        for part, kept in zip(parts, state["parts"], strict=True):
            part.load_state_dict(kept)
        self.n_updates = state["n_updates"]


def alike(one: Graph, other: Graph) -> bool:
    """Tell whether two graphs have the same nodes and edges, whatever their bandwidths."""
    same = one.n_places == other.n_places and np.array_equal(one.kind, other.kind)
    return same and np.array_equal(one.source, other.source) and np.array_equal(one.target, other.target)
