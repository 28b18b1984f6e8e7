"""Classic schedulers in compiled code: whole stretches of a simulated run, event by event what `Session.step` does.

A session hands over where its backend is a `Simulator` without disturbances, its cadence is `at_events`, jobs have
workers alone and the speed that they have wherever they sit, and the scheduler has a `Rule` and places by first fit.
Anything that is not plain is left to the readable path, for one step or for the whole run.
"""

from labkit.experiment.classic.stretches import Stretches

__all__ = ["Stretches"]
