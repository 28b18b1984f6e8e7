"""Where the tasks of a job are to sit, where they sit, and the scalings under way between the two."""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.elastic.controller.placement import JobPlacement


@dataclass(slots=True)
class JobScalings:
    """Placements of one job; not locked.

    Attributes
    ----------
    target : dict or None
        Where its tasks are to sit; None: it is to stop.
    requested : dict or None
        Placement that its process was sent last; None: it does not run.
    current : dict or None
        Placement after the last scaling that is complete.
    """

    target: JobPlacement | None = None
    requested: JobPlacement | None = None
    current: JobPlacement | None = None
    _under_way: dict[int, JobPlacement] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether the job runs at its target, and no scaling is under way."""
        return self.requested is not None and self.target == self.requested and not self._under_way

    def occupied(self) -> list[JobPlacement]:
        """Return the placements that may have processes now."""
        return [self.current or {}, *self._under_way.values()]

    def started(self, place: JobPlacement) -> None:
        """Note that the job starts with a placement."""
        self.requested, self.current = dict(place), dict(place)
        self._under_way.clear()

    def begun(self, scaling: int, place: JobPlacement) -> None:
        """Note that the job's process has begun a scaling, and its number."""
        self.requested = self._under_way[scaling] = dict(place)

    def over(self, scaling: int, *, scaled: bool) -> None:
        """Note the end of a scaling.

        If it failed and no later one is under way, the job is where it was: a target that equals the failed placement
        is reset to that.
        """
        place = self._under_way.pop(scaling, None)
        if place is not None and scaled:
            self.current = place
        elif place is not None and place == self.requested and not self._under_way:
            self.target = self.current if self.target == self.requested else self.target
            self.requested = self.current

    def host_lost(self, host: str, rest: JobPlacement) -> None:
        """Note that the tasks of a host are gone; `rest` is the new target."""
        self.target = dict(rest)
        self.current = {site: n for site, n in (self.current or {}).items() if site.rpartition("/")[0] != host}

    def ended(self, *, keep_target: bool = True) -> None:
        """Note that the job runs no more."""
        self.requested = None
        if not keep_target:
            self.target = None
