"""Classic schedulers in compiled code: whole stretches of a simulated run, event by event what `Session.step` does.

A session hands over where its backend is a `Simulator` without disturbances, its cadence is `at_events`, jobs have
workers alone and the speed that they have wherever they sit, and the scheduler has a `Rule` and places by first fit.
Anything that is not plain is left to the readable path, for one step or for the whole run.

Kernels that run at each decision have `forceinline`: numba passes each array as 7 numbers or more, so that a call with
all columns pushes some 500 of them, which took more than half of the time where LLVM left those calls as they are.
"""

from labkit.experiment.classic.stretches import Stretches

__all__ = ["Stretches"]
