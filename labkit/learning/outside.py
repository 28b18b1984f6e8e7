"""For learners from outside: environments by name, observations that are scaled, and a trained module as a scheduler.

`import labkit.learning` registers `labkit/Slots-v0` with Gymnasium:

>>> import gymnasium
>>> import labkit.learning
>>> env = gymnasium.make("labkit/Slots-v0", trace="dl2_jobs('testbed_6n')", cluster="dl2-6n", slot_s=300.0)
>>> observation, info = env.reset(seed=0)
>>> observation.shape, info["action_mask"].shape
((20, 5), (61,))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np

from labkit.core.draft import FEATURES, MOST
from labkit.core.placement import Placement
from labkit.core.snapshot import Snapshot
from labkit.experiment.experiment import Experiment
from labkit.experiment.scenario import Scenario
from labkit.learning.env import Observation, SlotEnv
from labkit.learning.envs import SlotEnvs
from labkit.learning.settings import FIRST_SEED
from labkit.workloads.expressions import is_generated

NAME: Final = "labkit/Slots-v0"
SCALES: Final = dict(zip(FEATURES, (10.0, 100.0, 1.0, 16.0, 16.0), strict=True))
"""What each feature is divided by, before log(1 + x)."""

ExperimentOf = Callable[[np.random.Generator], Experiment]
Logits = Callable[[Observation], Any]


def scaled(observation: Observation) -> Observation:
    """Return an observation of `SlotEnv`, (..., J, L + 5), with its features about between 0 and 1.

    >>> scaled(np.array([[10.0, 100.0, 0.5, 16.0, 0.0]], np.float32)).round(2).tolist()
    [[0.6899999976158142, 0.6899999976158142, 0.4099999964237213, 0.6899999976158142, 0.0]]
    """
    n = len(FEATURES)
    seen = np.array(observation, np.float32)
    seen[..., -n:] = np.log1p(seen[..., -n:] / np.array([SCALES[name] for name in FEATURES], np.float32))
    return seen


class ScaledSlots(gym.ObservationWrapper[Observation, np.int64, Observation]):
    """A `SlotEnv` with scaled observations; masks are in `info` and from `action_masks()`, as sb3-contrib asks."""

    def __init__(self, env: SlotEnv) -> None:
        super().__init__(env)
        shape = env.observation_space.shape
        self.observation_space = gym.spaces.Box(0.0, float(np.log1p(MOST)), shape, np.float32)

    def observation(self, observation: Observation) -> Observation:
        """Return it scaled."""
        return scaled(observation)

    def action_masks(self) -> Any:
        """Return which actions find room, (3 J + 1,)."""
        return self.env.unwrapped.action_masks()  # type: ignore[attr-defined]


def experiments(trace: str, **scenario: Any) -> ExperimentOf:
    """Return the sampler of episodes: a generated trace has a seed of training in each, a file is the same in all."""
    asked = Scenario(trace=trace, **scenario)

    def drawn(rng: np.random.Generator) -> Experiment:
        seed = FIRST_SEED + int(rng.integers(1 << 30)) if is_generated(trace) else 0
        return Experiment.of(Scenario(trace=trace, **{**scenario, "seed": seed}))

    return drawn if is_generated(trace) else lambda _: Experiment.of(asked)


def slots(
    *, trace: str = "dl2_jobs('short_48n', pattern='google')", cluster: str = "dl2-16n", n_jobs: int = 20,
    slot_s: float = 1200.0, models: tuple[str, ...] = (), reward: str = "time", **scenario: Any,
) -> ScaledSlots:  # fmt: skip
    """Return the environment of `gymnasium.make("labkit/Slots-v0", ...)`; `scenario` is what `Scenario` takes."""
    of = experiments(trace, cluster=cluster, slot_s=slot_s, **scenario)
    return ScaledSlots(SlotEnv(of, n_jobs=n_jobs, slot_s=slot_s, models=models, reward=reward))


def vector_slots(
    *, num_envs: int = 1, trace: str = "dl2_jobs('short_48n', pattern='google')", cluster: str = "dl2-16n",
    n_jobs: int = 20, slot_s: float = 1200.0, models: tuple[str, ...] = (), reward: str = "time", **scenario: Any,
) -> SlotEnvs:  # fmt: skip
    """Return the environments of `gymnasium.make_vec("labkit/Slots-v0", num_envs=B, ...)`: compiled, not scaled."""
    of = experiments(trace, cluster=cluster, slot_s=slot_s, **scenario)
    return SlotEnvs(of, n_envs=num_envs, n_jobs=n_jobs, slot_s=slot_s, models=models, reward=reward)


def register() -> None:
    """Register `labkit/Slots-v0` with Gymnasium, once."""
    if NAME not in gym.registry:
        gym.register(
            NAME, entry_point=f"{__name__}:slots", vector_entry_point=f"{__name__}:vector_slots",
            order_enforce=True, disable_env_checker=True,
        )  # fmt: skip


@dataclass(eq=False)
class ModuleScheduler:
    """A trained module as a scheduler, which `compare`, `simulate` and `deploy` take.

    In each slot it takes the most probable action that finds room, again and again, as an agent of `labkit/Slots-v0`
    would, until it ends the slot.

    Attributes
    ----------
    logits : callable
        From a scaled observation (J, L + 5) to 3 J + 1 numbers, the largest of which is the action, such as a torch
        module.
    n_jobs, models
        As in the environment of its training.
    quantum_s : float
        A session decides at least this often.

    Examples
    --------
    >>> from labkit.experiment import Experiment
    >>> ends_at_once = ModuleScheduler(lambda seen: np.arange(61.0) == 60)
    >>> gives_all = ModuleScheduler(lambda seen: np.arange(61.0) < 60)
    >>> made = Experiment.of("dl2_jobs('testbed_6n')", cluster="dl2-6n")
    >>> bool(made.run(gives_all).summary["mean_jct_s"] > 0)
    True
    """

    knows_types: ClassVar[bool] = False

    logits: Logits
    n_jobs: int = 20
    models: tuple[str, ...] = ()
    quantum_s: float = 1200.0

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the tasks of the jobs that are seen."""
        if not len(snapshot.jobs):
            return Placement.nothing()
        env = SlotEnv.at(snapshot, n_jobs=self.n_jobs, models=self.models)
        while True:
            values = np.asarray(_plain(self.logits(scaled(env._observation()))), float).reshape(-1)
            action = int(np.where(env.action_masks(), values, -np.inf).argmax())
            job, what = divmod(action, 3)
            if action == 3 * self.n_jobs or not env._give(int(env._jobs[job]), what):
                return env._trial.placement()


def _plain(values: Any) -> Any:
    """Return numbers without their gradient, where they have one."""
    return values.detach() if hasattr(values, "detach") else values
