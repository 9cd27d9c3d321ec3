"""Explains why the API server refuses a worker's Pod, by the fields that the owner's user wrote. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from controller.errors import ApiError, Forbidden, Invalid, WebhookUnavailable, is_denial
from controller.resources import Object
from crds.texts import shortened
from reconcilers.observed.ownership import NameTaken
from reconcilers.observed.resources import quantity_fault
from reconcilers.observed.worker_state import POD_FORBIDDEN, POD_INVALID, POD_REFUSED
from reconcilers.runtime.refused import is_refusal

MAX_FAULTS = 8
"""Limit of refused fields that a message names."""
MAX_WHY = 320
"""Limit of characters of the API server's reason, which has to fit into a condition with our text."""

_POD_FIELDS = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_METADATA_FIELDS = frozenset(
    (
        *("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation"),
        *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations"),
        *("ownerReferences", "finalizers", "managedFields"),
    )
)
_UNKNOWN_FIELD = re.compile(r'unknown field "((?:[^"\\]|\\.)*)"')
_CONTAINER_FIELD = re.compile(r"spec\.(initContainers|containers)\[(\d+)\](?:\.env\[(\d+)\])?")
_NO_PRIORITY_CLASS = "no PriorityClass"
_QUOTA_OF_PODS = "count/pods="
"""The quota that counts ended Pods too; `pods` does not
(https://kubernetes.io/docs/concepts/policy/resource-quotas/)."""
_NOT_OF_THE_TEMPLATE = (
    "exceeded quota",
    "status unknown for quota",
    "not yet ready to handle request",
    "cannot create resource",
)
"""Texts of Forbidden errors for which the template is not at fault: a quota is used up or not counted yet, an
admission plugin is not ready since the API server's start, or dlr lacks the right."""


@dataclass(frozen=True)
class PodSource:
    """The user's fields of which a Pod is made."""

    pods: str
    """The Pods, as a message names them."""
    path: str
    """The template's path in its owner."""
    template: Object
    """All of the template; a spec without containers where the template is dlr's own."""
    envs: Collection[str] = ()
    """Names of the job's variables."""
    priority: tuple[str, str] | None = None
    """Path and name of the PriorityClass that the Pod has in place of its template's."""


class PodRefused(Exception):
    """The API server refuses the Pod.

    Args:
        reason: reason of the worker's condition.
        message: why, in one sentence.
        counts_ended: whether a quota that counts ended Pods too is used up.
    """

    def __init__(self, reason: str, message: str, *, counts_ended: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.counts_ended = counts_ended


def refused_pod(error: ApiError, source: PodSource, pod: Object) -> PodRefused | None:
    """Return an error as the refusal of a Pod: its template is invalid, forbidden, or, as for a quota, not at
    fault. None for an error that is no refusal."""
    if not is_refusal(error):
        return None
    why = shortened(" ".join(str(error).split()), MAX_WHY)
    refuses = f"the API server refuses {source.pods}: "
    passes = isinstance(error, WebhookUnavailable | NameTaken)
    if passes or (isinstance(error, Forbidden) and any(each in str(error) for each in _NOT_OF_THE_TEMPLATE)):
        message = f"Pod {pod['metadata']['name']} was refused: {why}"
        return PodRefused(POD_REFUSED, message, counts_ended=_QUOTA_OF_PODS in str(error))
    if is_denial(error):
        return PodRefused(POD_FORBIDDEN, refuses + why)
    if isinstance(error, Invalid):
        fields = quantity_fault(source.template, source.path) or "; ".join(_faults(error, source, pod)) or why
        return PodRefused(POD_INVALID, refuses + shortened(fields, MAX_WHY))
    if isinstance(error, Forbidden) and source.priority is not None and _NO_PRIORITY_CLASS in why:
        path, name = source.priority
        return PodRefused(POD_FORBIDDEN, f"{path}: there is no PriorityClass {name}; create it")
    return PodRefused(POD_FORBIDDEN, refuses + why)


def with_unknown_fields(pod: Object, template: Object) -> Object:
    """Return the Pod with the template's unknown fields, so that the API server names them."""
    metadata = template.get("metadata") or {}
    unknown = {field: value for field, value in metadata.items() if field not in _METADATA_FIELDS}
    others = {field: value for field, value in template.items() if field not in _POD_FIELDS}
    return {**others, **pod, "metadata": {**unknown, **pod["metadata"]}}


def _faults(error: Invalid, source: PodSource, pod: Object) -> list[str]:
    """Return the faulty fields, each by its path in the owner, with its fault."""
    found = islice((cause for cause in error.causes if cause.field), MAX_FAULTS)
    wrong = [(cause.field, cause.message) for cause in found]
    unknown = islice(_UNKNOWN_FIELD.finditer(str(error)), MAX_FAULTS) if error.status == 400 else ()
    wrong += [(each.group(1), "unknown field; is it misspelt?") for each in unknown]
    return [f"{users_path(field, source, pod)}: {why}" for field, why in wrong]


def users_path(field: str, source: PodSource, pod: Mapping[str, Object]) -> str:
    """Return the owner's path of a Pod's field: our containers and variables come before the user's."""
    found = _CONTAINER_FIELD.match(field)
    if found is None:
        return f"{source.path}.{field}"
    part, place, variable = found.group(1), int(found.group(2)), found.group(3)
    own = source.template["spec"].get(part) or ()
    place -= len(pod["spec"].get(part) or ()) - len(own)
    ours = f"the Pod's {field}, which dlr adds"
    if not 0 <= place < len(own):
        return ours
    path, rest = f"{source.path}.spec.{part}[{place}]", field[found.end() :]
    if variable is None:
        return path + rest
    variables = pod["spec"][part][int(found.group(2))]["env"]
    name = variables[int(variable)]["name"] if int(variable) < len(variables) else None
    names = [entry["name"] for entry in own[place].get("env") or ()]
    if name in names:
        return f"{path}.env[{names.index(name)}]{rest}"
    return f"spec.envs.{name}{rest}" if name in source.envs else ours
