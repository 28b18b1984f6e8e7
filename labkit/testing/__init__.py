"""What a scheduler, placer, backend, speed model or topology must pass; for users' own too.

One line in a test is enough: `check_scheduler(MyScheduler())`. Hypothesis strategies are in
`labkit.testing.strategies`; nothing else here needs Hypothesis.
"""

from labkit.testing.backends import check_backend, same_events
from labkit.testing.placements import ConformanceError, check_placement
from labkit.testing.placers import check_gangs, check_placer
from labkit.testing.scenes import Chaos, DecisionScene, random_scene, random_scenes
from labkit.testing.schedulers import check_answer, check_run, check_scheduler
from labkit.testing.speeds import check_speed_model
from labkit.testing.topologies import check_topology

__all__ = [
    "Chaos", "ConformanceError", "DecisionScene", "check_answer", "check_backend", "check_gangs", "check_placement",
    "check_placer", "check_run", "check_scheduler", "check_speed_model", "check_topology", "random_scene",
    "random_scenes", "same_events",
]  # fmt: skip
