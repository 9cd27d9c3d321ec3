"""What holds workers back from a job's world beside the job itself, as one read shows it: `Vetting`. Pure.

A feature that tests workers has objects of its own, from which it answers. The world follows in
`decision.py`: none is formed with workers that are yet to be vetted, nor while any are claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crds.elasticjob import ElasticJob
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Act


@dataclass(frozen=True)
class Claim:
    """An object that has workers tested: no world is formed meanwhile."""

    name: str
    workers: frozenset[int] | None = None
    """The workers that it tests; None for all."""
    kind: str = ""
    """Its kind, in words."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".lstrip()

    def tests(self, index: int) -> bool:
        return self.workers is None or index in self.workers


@dataclass(frozen=True)
class Standing:
    """The job's training workers by what is found out about their nodes, by index."""

    unvetted: frozenset[int] = frozenset()
    """Workers to be tested before a world is formed with them."""
    faulty: Mapping[int, str] = field(default_factory=dict)
    """Workers on faulty nodes, with the finding."""
    slow: frozenset[int] = frozenset()
    """Workers on slow nodes; left out of the world if enough others are ready."""
    faulty_nodes: tuple[str, ...] = ()
    """All faulty nodes, the newest last."""
    cleared: frozenset[str] = frozenset()
    """Nodes whose last verdict is another, or is on another machine."""
    leaving: Mapping[int, str] = field(default_factory=dict)
    """Members that leave the world by vote before they count as faulty, with the fault of their nodes."""
    reported_nodes: tuple[str, ...] = ()
    """Nodes of which a fault is reported now: no new Pod goes there."""
    suspected_at: datetime | None = None
    """When hardware was last suspected; None if never."""


UNJUDGED = Standing()


class Vetting:
    """The answers for one job. By default, nobody tests its workers."""

    @property
    def claim(self) -> Claim | None:
        """The object that has workers tested now."""
        return None

    @property
    def look_size(self) -> int:
        """Number of workers that take as long to look at."""
        return 0

    def follows_failures(self, _: ElasticJob) -> bool:
        """Whether nodes are tested after failures of hardware, so that no worker leaves its node before."""
        return False

    def standing(self, _: ElasticJob, __: Workers, now: datetime) -> Standing:
        """Judge the workers."""
        return UNJUDGED

    def request(self, job: ElasticJob, workers: Sequence[int]) -> Act:
        """The object to make, which has these unvetted workers tested."""
        raise NotImplementedError(f"nobody tests workers {list(workers)} of {job.metadata.name}")

    def leftovers(self) -> Sequence[Act]:
        """Deletions of objects that are of no use any more."""
        return ()
