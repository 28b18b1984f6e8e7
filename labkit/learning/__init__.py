"""Learning to schedule: sessions as Gymnasium environments, and the training of labkit's own policies.

`SlotEnv` is one: in each slot an agent gives tasks to jobs, one by one, and is rewarded for what comes of it.
`SlotEnvs` are many of them in lockstep, in compiled code. `gymnasium.make("labkit/Slots-v0")` makes one with scaled
observations, and `ModuleScheduler` makes a scheduler of what was trained there.
"""

from labkit.learning.env import REWARDS, SlotEnv
from labkit.learning.envs import SlotEnvs
from labkit.learning.outside import ModuleScheduler, register, scaled

__all__ = ["REWARDS", "ModuleScheduler", "SlotEnv", "SlotEnvs", "scaled"]

register()
