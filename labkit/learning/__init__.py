"""Learning to schedule: sessions as Gymnasium environments, and the training of labkit's own policies.

`SlotEnv` is one: in each slot an agent gives tasks to jobs, one by one, and is rewarded for what comes of it.
`SlotEnvs` are many of them in lockstep, in compiled code.
"""

from labkit.learning.env import REWARDS, SlotEnv
from labkit.learning.envs import SlotEnvs

__all__ = ["REWARDS", "SlotEnv", "SlotEnvs"]
