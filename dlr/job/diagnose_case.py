"""What a diagnosis is made of: the objects that were read, and sentences that name where they have it from.

Pure. A field is written as it is found: `status.goodput.ratio`; in brackets the key of an entry, which is its
`type` in a list of conditions or warnings, its `name` or `node` in other lists, or itself in a list of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from crds.job_status import Goodput
from dlr.job.checkpoints import checkpoints_line
from dlr.job.culprit import Culprit, find_culprit
from dlr.job.goodput import account_of, redone
from dlr.job.progress import Progress, progress_of
from dlr.job.report import current_report, warnings_of
from dlr.job.shards import SetProgress, sets_of
from dlr.job.timeline.life import Life, NoHistory, life_of
from dlr.job.wording import plain

JSON = dict[str, Any]

MOST_CHARACTERS = 600
"""Of one sentence: what a cluster says may be as long as it likes."""


@dataclass(frozen=True)
class Field:
    """The source of a statement."""

    kind: str
    name: str
    path: str

    @property
    def object(self) -> str:
        return f"{self.kind}/{self.name}"

    def __str__(self) -> str:
        """The job itself goes without saying."""
        return self.path if self.kind == "ElasticJob" else f"{self.object} {self.path}"


@dataclass(frozen=True)
class Sentence:
    text: str
    fields: tuple[Field, ...]
    """At least one, each of which was there."""
    lines: tuple[str, ...] = ()
    """What belongs to it as it stands: a traceback, stacks."""

    def as_json(self) -> JSON:
        fields = [{"object": field.object, "path": field.path} for field in self.fields]
        return {"text": self.text, "fields": fields} | ({"lines": list(self.lines)} if self.lines else {})


@dataclass(frozen=True)
class Case:
    """All that was read, at one time."""

    job: JSON
    workers: list[JSON]
    """The workers in order."""
    events: Sequence[JSON]
    """Events of the job, its workers and its Pods, the oldest first."""
    checks: Sequence[JSON]
    """NodeChecks of the job's namespace."""
    nodes: Sequence[JSON]
    """The readable nodes among those of the job's Pods."""
    now: datetime
    all_nodes: Sequence[JSON] = ()
    """All nodes of the cluster, if the job waits for room."""

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def status(self) -> JSON:
        return self.job.get("status") or {}

    @cached_property
    def account(self) -> Goodput | None:
        return account_of(self.job, self.workers, self.now)

    @cached_property
    def progress(self) -> Progress | None:
        return progress_of(self.job, self.workers, self.account.last_step if self.account else None)

    @cached_property
    def reports(self) -> list[tuple[JSON, JSON]]:
        """All workers, each with what the agent of its current incarnation says."""
        return [(worker, current_report(worker)) for worker in self.workers]

    @cached_property
    def telling(self) -> list[tuple[JSON, JSON]]:
        """Return the workers whose agents report progress, each with its `status.agent.progress`."""
        return [(worker, told) for worker, report in self.reports if (told := report.get("progress"))]

    @cached_property
    def checkpoints(self) -> str:
        return checkpoints_line(self.job, self.workers)

    @cached_property
    def shard_sets(self) -> list[SetProgress]:
        return [*sets_of(self.job, self.workers, self.now)]

    @cached_property
    def culprit(self) -> Culprit | None:
        return find_culprit(self.job, self.workers)

    @cached_property
    def life(self) -> Life | None:
        """None where nothing was kept of it yet."""
        ratio = self.account.ratio if self.account else None
        try:
            return life_of(self.job, self.workers, ratio, self.now, redone(self.account))
        except NoHistory:
            return None

    @cached_property
    def node_names(self) -> frozenset[str]:
        """Return the nodes of the job's present Pods."""
        found = ((worker.get("status") or {}).get("nodeName") for worker in self.workers)
        return frozenset(name for name in found if name)

    def of_progress(self) -> list[Field]:
        """Return the fields that have the furthest step and the speed."""
        fields = (
            [*self.of_job("status.goodput.lastStep")]
            if (self.status.get("goodput") or {}).get("lastStep")
            else []
        )
        return [*fields, *(of_worker(self.telling[0][0], "status.agent.progress") if self.telling else ())]

    def condition(self, type_: str, status: str) -> JSON | None:
        """The job's condition of that type, if it has that status."""
        for each in self.status.get("conditions") or ():
            if (each.get("type"), each.get("status")) == (type_, status):
                return dict(each)
        return None

    def warning(self, type_: str) -> JSON | None:
        """The job's warning of that type, if it has one."""
        return next((dict(each) for each in warnings_of(self.job) if each.get("type") == type_), None)

    def of_job(self, *paths: str) -> tuple[Field, ...]:
        return tuple(Field("ElasticJob", self.name, path) for path in paths)

    def of_condition(self, type_: str) -> tuple[Field, ...]:
        return self.of_job(f"status.conditions[{type_}]")

    def of_warning(self, type_: str) -> tuple[Field, ...]:
        return self.of_job(f"status.warnings[{type_}]")


def of_worker(worker: JSON, *paths: str) -> tuple[Field, ...]:
    return tuple(Field("ElasticWorker", worker["metadata"]["name"], path) for path in paths)


def sentence(text: str, fields: Iterable[Field], lines: Iterable[str] = ()) -> Sentence:
    """One line that ends with a stop."""
    said = plain(text)
    said = said if len(said) <= MOST_CHARACTERS else f"{said[: MOST_CHARACTERS - 1]}…"
    stopped = said if said.endswith((".", "…", "?", "!")) else f"{said}."
    return Sentence(stopped, tuple(fields), tuple(lines))
