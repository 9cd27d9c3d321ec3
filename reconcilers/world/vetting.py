"""Interface to features that keep workers out of a job's world: `Vetting`. Pure.

A feature that tests workers answers from objects of its own. `decision.py` forms no world with workers that
have to be vetted first, nor while workers are claimed.
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
    """An object that tests workers; no world is formed meanwhile."""

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
    """Results about the nodes of the job's training workers, which are identified by index."""

    unvetted: frozenset[int] = frozenset()
    """Workers to test before a world is formed with them."""
    faulty: Mapping[int, str] = field(default_factory=dict)
    """Workers on faulty nodes, with the finding."""
    slow: frozenset[int] = frozenset()
    """Workers on slow nodes; left out of the world if enough others are ready."""
    faulty_nodes: tuple[str, ...] = ()
    """All faulty nodes, the newest last."""
    cleared: frozenset[str] = frozenset()
    """Nodes whose last verdict is no longer faulty, or is about another machine."""
    leaving: Mapping[int, str] = field(default_factory=dict)
    """Members that leave the world by vote before they count as faulty, with the fault of their nodes."""
    reported_nodes: tuple[str, ...] = ()
    """Nodes with a reported fault: no new Pod goes there."""
    suspected_at: datetime | None = None
    """When hardware was last suspected; None if never."""


UNJUDGED = Standing()


class Vetting:
    """The answers for one job. By default, its workers are not tested."""

    @property
    def claim(self) -> Claim | None:
        """The object that tests workers now; None without one."""
        return None

    @property
    def look_size(self) -> int:
        """Size of the work to answer, as a number of workers that takes as long."""
        return 0

    def follows_failures(self, _: ElasticJob) -> bool:
        """Whether nodes are tested after failures of hardware, so that workers stay on them until then."""
        return False

    def standing(self, _: ElasticJob, __: Workers, now: datetime) -> Standing:
        """Judge the workers."""
        return UNJUDGED

    def request(self, job: ElasticJob, workers: Sequence[int]) -> Act:
        """Return the creation of the object that tests these unvetted workers."""
        raise NotImplementedError(f"nobody tests workers {list(workers)} of {job.metadata.name}")

    def leftovers(self) -> Sequence[Act]:
        """Return deletions of objects that are no longer needed."""
        return ()
