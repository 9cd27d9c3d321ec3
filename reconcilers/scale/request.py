"""A scale request: a change of a job's counts, slots and resources by a ScalePlan or dlr itself. Pure.

A request is written into the job as one annotation, in the same write as its counts. So the job has the whole
request, and nothing else needs to be read, or to survive, until the rest of the request is merged into the
job's status (`uptake.py`). The counts stay in the job's spec, for `kubectl scale` and autoscalers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, ValidationError

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.model import Count, Indices, Model, Name, ResourceRequirements
from reconcilers.runtime.acts import Event

MAX_CHARACTERS = 16_384
"""Limit of characters of a request in its annotation."""
MAX_REMOVED = 1_000
"""Limit of slots that one of dlr's own requests names; the others go with the next."""
REFUSED_SECONDS = 3_600.0
"""Time after which dlr repeats a refused request of its own."""


class Origin(StrEnum):
    """The origin of a request, as in `status.scaling.by`."""

    PLAN = "ScalePlan"
    GROWTH = "growth into free room"
    SHARDS = "shardScaling"
    PROFILE = "the profile of earlier jobs"
    EVICTION = "an announced eviction"


class ScaleRequest(Model):
    """A change of a job's scale."""

    id: Annotated[str, Field(max_length=64)]
    """The plan's uid, or a name that is unique among the job's requests."""
    job: Annotated[str, Field(max_length=64)]
    """The job's uid: a job may be created from another's manifest, with its annotations."""
    origin: Origin
    plan: Name = ""
    """Name of the ScalePlan."""
    replicas: dict[str, Count] = Field(default_factory=dict)
    """Counts, by replica type."""
    removed: dict[str, Indices] = Field(default_factory=dict)
    """Slots that leave for good."""
    moved: dict[str, Indices] = Field(default_factory=dict)
    """Slots that others replace."""
    kept: dict[str, Indices] = Field(default_factory=dict)
    """Slots whose replacement by an earlier request goes on."""
    resources: dict[str, ResourceRequirements] = Field(default_factory=dict)
    """Amounts that override the type's present ones."""
    edits_from: int = 0
    """Generation of the job from which other counts are a later edit's. Before, they are a webhook's, which
    has refused these."""
    last_plan: Annotated[str, Field(max_length=64)] = ""
    """Uid of the last ScalePlan that was written into the job before this request."""
    base: Count | None = None
    """Number of needed workers, if not all are: no world waits for the others. Without a count in the
    request, a number of the job's present workers."""

    @property
    def types(self) -> frozenset[str]:
        return frozenset({*self.replicas, *self.removed, *self.moved, *self.resources})

    @property
    def by(self) -> str:
        return f"{self.origin} {self.plan}" if self.plan else self.origin.value

    def asks_same(self, other: ScaleRequest) -> bool:
        beside = {"id": other.id, "edits_from": other.edits_from, "last_plan": other.last_plan}
        return self.model_copy(update=beside) == other

    def to_text(self) -> str:
        """Return the value of the annotation."""
        return json.dumps(self.to_wire(), separators=(",", ":"))

    def to_patch(self) -> Object:
        """Return the merge patch of the job, without the resourceVersion."""
        counts = {type_: {"replicas": count} for type_, count in self.replicas.items()}
        patch: Object = {"metadata": {"annotations": {names.ANNOTATION_SCALE: self.to_text()}}}
        return patch | ({"spec": {"replicaSpecs": counts}} if counts else {})

    def in_words(self) -> str:
        """Return the request as text for a message."""
        parts = [f"{count} of type {type_}" for type_, count in sorted(self.replicas.items())]
        for verb, slots in (("without", self.removed), ("moving", self.moved)):
            parts += [
                f"{verb} {type_} {', '.join(map(str, indices))}" for type_, indices in sorted(slots.items())
            ]
        for type_, asked in sorted(self.resources.items()):
            amounts = {**asked.requests, **asked.limits}
            each = ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items()))
            parts.append(f"{each} for each of type {type_}")
        return "; ".join(parts)


@dataclass(frozen=True)
class ScaleWrite:
    """One of dlr's own requests, to write into its job."""

    request: ScaleRequest
    refusal: str = ""
    """Why it is not written; empty if it is."""
    event: Event | None = None
    """Event to record once it is written."""


@dataclass(frozen=True)
class RefusedRequest:
    """The last of dlr's own requests that was refused."""

    request: ScaleRequest
    generation: int
    """Generation of the job at that time."""
    message: str
    left_seconds: float
    """Time until it is repeated."""


def own_request(job: ElasticJob, origin: Origin, replicas: int | None = None, **more: Any) -> ScaleRequest:
    """One of dlr's own requests, with an id for each generation of the job, origin and count."""
    counts = {} if replicas is None else {names.WORKER: replicas}
    identity = "-".join(map(str, (origin.name.lower(), job.metadata.generation, *counts.values())))
    return ScaleRequest(
        id=identity,
        job=job.metadata.uid,
        origin=origin,
        replicas=counts,
        edits_from=edits_from(job, counts),
        last_plan=last_plan(job),
        **more,
    )


def edits_from(job: ElasticJob, counts: Mapping[str, int]) -> int:
    """The generation that the first edit after a write of these counts gives the job."""
    specs = job.spec.replica_specs
    is_change = any(type_ in specs and specs[type_].replicas != counts[type_] for type_ in counts)
    return job.metadata.generation + is_change + 1


def pending(job: ElasticJob) -> ScaleRequest | None:
    """The request that is written into the job, and not merged into its status yet."""
    found = _waiting(job)
    return found if found is not None and not _is_refused(job, found) else None


def last_plan(job: ElasticJob) -> str:
    """The uid of the last ScalePlan whose request was written into the job; empty if there was none."""
    found = written(job)
    if found is None:
        return ""
    return found.id if found.origin is Origin.PLAN and not _is_refused(job, found) else found.last_plan


def is_merged(job: ElasticJob) -> bool:
    """Whether the job's status has merged the last request, so that another may follow."""
    return _waiting(job) is None


def is_left_over(job: ElasticJob) -> bool:
    """Whether the job still has a request whose counts a webhook has refused."""
    found = _waiting(job)
    return found is not None and _is_refused(job, found)


def overridden(job: ElasticJob, id_: str) -> str:
    """Message about the counts of the job's last request that an edit has since changed; empty if none.

    Args:
        id_: id of the request; another than the last one has no message.
    """
    request = written(job)
    changed = _changed(job, request) if request is not None and request.id == id_ else {}
    each = [
        f"{present} of type {type_} in place of {requested}"
        for type_, (requested, present) in sorted(changed.items())
    ]
    return f"the job's spec was changed: {', '.join(each)}" if each else ""


def _waiting(job: ElasticJob) -> ScaleRequest | None:
    found = written(job)
    return found if found is not None and found.id != job.status.scale_request else None


def _is_refused(job: ElasticJob, request: ScaleRequest) -> bool:
    return bool(_changed(job, request)) and job.metadata.generation < request.edits_from


def _changed(job: ElasticJob, request: ScaleRequest) -> dict[str, tuple[int, int]]:
    """The requested and present counts that differ, by type."""
    present = {type_: spec.replicas for type_, spec in job.spec.replica_specs.items()}
    return {
        type_: (count, present[type_])
        for type_, count in request.replicas.items()
        if type_ in present and present[type_] != count
    }


def written(job: ElasticJob) -> ScaleRequest | None:
    """The last request that was written into the job."""
    text = job.metadata.annotations.get(names.ANNOTATION_SCALE)
    if text is None or len(text) > MAX_CHARACTERS:
        return None
    try:
        found = ScaleRequest.model_validate_json(text)
    except ValidationError:
        return None  # written by somebody else
    return found if found.job == job.metadata.uid else None


def differing(stored: Object, counts: Mapping[str, int]) -> str:
    """Message about a count that a webhook changes as it is written, again and again; empty if none."""
    for type_, count in counts.items():
        present = stored["spec"]["replicaSpecs"].get(type_, {}).get("replicas")
        if present != count:
            path = f"spec.replicaSpecs[{type_}].replicas"
            return f"a webhook set {path} to {present} in place of the requested {count}"
    return ""
