"""What earlier jobs ended with: where a job of their kind starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labkit.schedulers.dlrover.plan import Plan


@dataclass(frozen=True, slots=True)
class Likeness:
    """By what jobs are alike: a model, the samples of a step (0: not declared), and the data they learn from."""

    model: str
    batch: float
    dataset: str

    @property
    def kind(self) -> tuple[str, float]:
        """What jobs have in common that are as fast with the same plan, as far as that is known."""
        return self.model, self.batch


@dataclass(frozen=True, slots=True)
class History:
    """Last final plans; it does not change, `noted` returns another one.

    >>> wide = Likeness("wide-deep", 512, "criteo")
    >>> known = History().noted({wide: Plan(24, 3, 8, 16)})
    >>> known.start(wide)[1], known.start(Likeness("wide-deep", 64, "mine"))[1], known.start(Likeness("dssm", 1, ""))
    ('the last plan of the same model, batch and dataset', 'the last plan of the same model', None)
    """

    alike: Mapping[Likeness, Plan] = field(default_factory=dict)
    of_model: Mapping[str, Plan] = field(default_factory=dict)

    def noted(self, plans: Mapping[Likeness, Plan]) -> History:
        """Return the history in which jobs have ended with some plans, the last one last."""
        return History({**self.alike, **plans}, {**self.of_model, **{job.model: plan for job, plan in plans.items()}})

    def start(self, job: Likeness) -> tuple[Plan, str] | None:
        """Return the plan to start a job with and where it is from; None: nothing is known (a cold start)."""
        if job in self.alike:
            return self.alike[job], "the last plan of the same model, batch and dataset"
        if job.model in self.of_model:
            return self.of_model[job.model], "the last plan of the same model"
        return None
