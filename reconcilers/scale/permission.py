"""Whether dlr may change a job's scale by itself: its autoScale, its resourceLimits, the nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from crds.elasticjob import ElasticJob
from reconcilers.observed.suitable import Sizes
from reconcilers.runtime.acts import Event
from reconcilers.scale.plan_resources import Amounts, too_large, too_much_in_all
from reconcilers.scale.request import Origin, RefusedRequest, ScaleRequest, ScaleWrite


@dataclass(frozen=True)
class ScaleRefusal:
    reason: str
    """Reason for a condition."""
    message: str


CountsFault = Callable[[ElasticJob, Mapping[str, int]], str]
"""Function that returns why a job cannot have these counts, by type; empty if it can."""


def no_fault(_: ElasticJob, __: Mapping[str, int]) -> str:
    """The `CountsFault` of jobs whose counts only the API server may refuse."""
    return ""


def own_write(
    job: ElasticJob,
    request: ScaleRequest,
    refused: RefusedRequest | None,
    nodes: Collection[Mapping[str, Any]] = (),
    event: Event | None = None,
    *,
    is_free: bool = False,
) -> tuple[ScaleWrite | None, float | None]:
    """The write of dlr's own request; or, if the same was refused, the seconds until it is repeated.

    Args:
        nodes: all Nodes, if it requests resources.
        event: Event to record once it is written.
        is_free: whether the request needs no permission.
    """
    if refused is not None and refused.request.asks_same(request):
        return None, refused.left_seconds
    return ScaleWrite(request, "" if is_free else own_refusal(job, request, nodes), event), None


def refusal_of(refused: RefusedRequest | None, origin: Origin) -> str:
    """Why the last request was refused, if it has this origin and the refusal still counts."""
    return refused.message if refused is not None and refused.request.origin is origin else ""


def own_refusal(job: ElasticJob, request: ScaleRequest, nodes: Collection[Mapping[str, Any]]) -> str:
    """Why dlr may not make this request by itself; empty if it may."""
    sizes = Sizes(nodes)
    for type_, asked in request.resources.items():
        path = f"the {request.origin}, resources of type {type_}"
        if message := too_large(job, type_, Amounts.parse({**asked.requests, **asked.limits}, path), sizes):
            return message
    found = not_automatic(job, request)
    return found.message if found is not None else ""


def not_automatic(job: ElasticJob, request: ScaleRequest) -> ScaleRefusal | None:
    """The refusal of a request that the job does not allow to be made automatically."""
    for type_ in sorted(request.types):
        if job.spec.replica_specs[type_].auto_scale is False:
            message = f"the job's replicaSpecs[{type_}].autoScale is false"
            return ScaleRefusal("AutoScaleDisabled", message)
    message = too_much_in_all(job, request.replicas, request.resources)
    return ScaleRefusal("AboveResourceLimits", message) if message else None
