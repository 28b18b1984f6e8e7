"""DLRover's brain: it finds out how many workers, servers and cores each job of parameter servers needs.

One file per stage, pure: `history` (where a job starts), `fit` (what was measured), `plan` and `front` (what is best
for one job), `belief` (what is believed where measurements contradict the form), `stages` (when), `adjust` (what is
wrong with a job that trains), `memory` (what its servers will hold), `select` and `share` (cores among jobs), `rules`
(every threshold). Around them, in one decision (`turn`): `sight` reads the snapshot, `mend` and `start` carry out what
the stages say, `carry` makes tasks of plans, and `scheduler` asks them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labkit.core.protocols import Scheduler


def recipes() -> dict[str, tuple[dict[str, Any], Callable[..., Scheduler]]]:
    """Return the options and the builder of the scheduler by its name; each threshold is an option."""
    from labkit.schedulers import options_of
    from labkit.schedulers.dlrover.rules import Rules
    from labkit.schedulers.dlrover.scheduler import Dlrover

    of_rules, of_brain = options_of(Rules), options_of(Dlrover)

    def build(**options: Any) -> Scheduler:
        thresholds = {name: options.pop(name) for name in list(options) if name in of_rules}
        rules = options.pop("rules", Rules())
        return Dlrover(rules=replace(rules, **thresholds), **options)

    return {"dlrover": ({**of_brain, **of_rules}, build)}
