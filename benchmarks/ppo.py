"""PPO on `labkit/Slots-v0` in forty lines, as an example: train, and compare with rules.

python -m benchmarks.ppo --updates 200
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from labkit.core.resources import Bools
from labkit.experiment import Experiment, Scenario
from labkit.learning import ModuleScheduler, scaled

WORLD = {"trace": "dl2_jobs('short_48n', pattern='google')", "cluster": "dl2-8n", "slot_s": 1200.0}
N_ENVS, N_STEPS, N_JOBS = 16, 256, 30


class Agent(nn.Module):
    """A network that all jobs share, beside what they hold together; its value is that of their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.worth, self.value, self.stop = nn.Linear(64, 3), nn.Linear(64, 1), nn.Parameter(torch.full((1,), -2.0))

    def both(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, 3 J + 1) and values (B,) of observations (B, J, 5)."""
        hidden = self.body(torch.cat([seen, seen.mean(1, keepdim=True).expand_as(seen)], 2))
        logits = torch.cat([self.worth(hidden).flatten(1), self.stop.expand(len(seen), 1)], 1)
        return logits, self.value(hidden.mean(1))[:, 0]

    def forward(self, seen: np.ndarray) -> Tensor:
        """Return the logits of one observation, as `ModuleScheduler` asks."""
        return self.both(torch.as_tensor(seen)[None])[0][0]


def chances(logits: Tensor, mask: Bools | Tensor) -> torch.distributions.Categorical:
    """Return the chances of the actions that find room."""
    return torch.distributions.Categorical(logits=logits.masked_fill(~torch.as_tensor(mask), -1e9))


def train(n_updates: int, *, seed: int = 0) -> Agent:
    """Return an agent after so many updates of proximal policy optimization."""
    torch.manual_seed(seed)
    agent, envs = Agent(), gymnasium.make_vec("labkit/Slots-v0", num_envs=N_ENVS, n_jobs=N_JOBS, **WORLD)
    optimizer = torch.optim.Adam(agent.parameters(), 1e-3)
    seen, info = envs.reset(seed=seed)
    for update in range(n_updates):
        rows = []
        for _ in range(N_STEPS):
            x, mask = torch.as_tensor(scaled(seen)), torch.as_tensor(info["action_mask"].copy())
            with torch.no_grad():
                logits, value = agent.both(x)
                action = (policy := chances(logits, mask)).sample()
            seen, reward, done, stalled, info = envs.step(action.numpy())
            over = torch.as_tensor(done | stalled)
            rows.append((x, mask, action, policy.log_prob(action), value, torch.as_tensor(reward.copy()).float(), over))
        x, mask, action, before, value, reward, over = (torch.stack(part) for part in zip(*rows, strict=True))
        with torch.no_grad():
            following, better = agent.both(torch.as_tensor(scaled(seen)))[1], torch.zeros(N_ENVS)
        gained = torch.zeros_like(value)
        for t in reversed(range(N_STEPS)):  # generalized advantages; of a slot only its end is rewarded
            going = 1.0 - over[t].float()
            better = reward[t] + going * following - value[t] + 0.99 * going * better
            gained[t], following = better, value[t]
        aim, gain = (gained + value).flatten(), ((gained - gained.mean()) / (gained.std() + 1e-8)).flatten()
        for part in torch.randperm(N_ENVS * N_STEPS).repeat(3).chunk(24):
            logits, now = agent.both(x.flatten(0, 1)[part])
            policy = chances(logits, mask.flatten(0, 1)[part])
            ratio = (policy.log_prob(action.flatten()[part]) - before.flatten()[part]).exp()
            clipped = torch.minimum(ratio * gain[part], ratio.clamp(0.8, 1.2) * gain[part]).mean()
            loss = ((now - aim[part]) ** 2).mean() * 0.1 - clipped - 0.003 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        if update % 20 == 19:
            print(f"{update + 1} updates: mean reward of a step {reward.mean():.4f}", flush=True)
    return agent


def main() -> None:
    """Train an agent, and print its mean JCT beside that of rules."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ppo", description=__doc__)
    parser.add_argument("--updates", type=int, default=200)
    torch.set_num_threads(1)
    agent = train(parser.parse_args().updates)
    for name in ("drf", "optimus", "dl2", "ppo"):
        jct = []
        for seed in range(1, 6):
            scheduler = ModuleScheduler(agent, n_jobs=N_JOBS) if name == "ppo" else name
            made = Experiment.of(Scenario(**WORLD, seed=seed))  # type: ignore[arg-type]
            jct.append(made.run(scheduler, name=name).summary["mean_jct_s"] / 1200)
        print(f"{name}: {np.mean(jct):.2f} slots")


if __name__ == "__main__":
    main()
