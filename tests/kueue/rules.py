"""Which writes of a Workload the API server and Kueue's webhook refuse, and in which words."""

from __future__ import annotations

import json
from typing import Any

from controller.errors import ApiError, error_of_status
from tests.kueue.objects import ADMITTED, ELASTIC, GATED_BY, RESERVED, Object

PLURAL = "workloads.kueue.x-k8s.io"
_WEBHOOKS = {"vworkload": "validate", "mworkload": "mutate"}
_ORDER = {
    "": ("name", "template", "count", "minCount", "topologyRequest"),
    "containers": ("name", "image", "command", "args", "workingDir", "ports", "envFrom", "env", "resources"),
    "spec": ("volumes", "initContainers", "containers", "restartPolicy"),
}
"""The order in which Go writes the fields of what is quoted; others after these, by name."""


def failure(code: int, reason: str, message: str, details: Object | None = None) -> ApiError:
    status = {"kind": "Status", "message": message, "reason": reason, "code": code}
    return error_of_status(status | ({"details": details} if details else {}), code)


def unreachable(webhook: str) -> ApiError:
    """Return the answer to a write while Kueue's manager is down."""
    text = (
        f'failed calling webhook "{webhook}.kb.io": failed to call webhook: Post "https://10.0.0.1:9443/'
        f'{_WEBHOOKS[webhook]}-kueue-x-k8s-io-v1beta2-workload?timeout=10s": '
        "dial tcp 10.0.0.1:9443: connect: connection refused"
    )
    return failure(500, "InternalError", f"Internal error occurred: {text}", {"causes": [{"message": text}]})


def not_found(name: str) -> ApiError:
    details = {"name": name, "group": "kueue.x-k8s.io", "kind": "workloads"}
    return failure(404, "NotFound", f'{PLURAL} "{name}" not found', details)


def already_exists(name: str) -> ApiError:
    details = {"name": name, "group": "kueue.x-k8s.io", "kind": "workloads"}
    return failure(409, "AlreadyExists", f'{PLURAL} "{name}" already exists', details)


def conflict(name: str) -> ApiError:
    message = (
        f'Operation cannot be fulfilled on {PLURAL} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return failure(409, "Conflict", message, {"name": name, "group": "kueue.x-k8s.io", "kind": "workloads"})


def check(new: Object, old: Object | None) -> None:
    """Refuse a write as the CRD's rules do, or else as the webhook does.

    Raises:
        Invalid: 422, of the CRD.
        Forbidden: 403, of the webhook.
    """
    invalid = [*_of_spec(new["spec"]), *(_of_change(new, old) if old else ())]
    if invalid:
        raise _invalid(new["metadata"]["name"], invalid)
    denied = [*_denied(new), *(_denied_change(new, old) if old else ())]
    if denied:
        text = denied[0] if len(denied) == 1 else f"[{', '.join(denied)}]"
        raise failure(403, "Forbidden", f'admission webhook "vworkload.kb.io" denied the request: {text}')


def _invalid(name: str, causes: list[tuple[str, str]]) -> ApiError:
    text = [f"{field}: Invalid value: {message}" for field, message in causes]
    text = text[0] if len(text) == 1 else f"[{', '.join(text)}]"
    details = {
        "name": name,
        "group": "kueue.x-k8s.io",
        "kind": "Workload",
        "causes": [
            {"reason": "FieldValueInvalid", "message": f"Invalid value: {message}", "field": field}
            for field, message in causes
        ],
    }
    return failure(422, "Invalid", f'Workload.kueue.x-k8s.io "{name}" is invalid: {text}', details)


def _of_spec(spec: Object) -> list[tuple[str, str]]:
    found = []
    if spec.get("priorityClassRef") and spec.get("priority") is None:
        found.append(("spec", "priority should not be nil when priorityClassRef is set"))
    for index, each in enumerate(spec["podSets"]):
        path = f"spec.podSets[{index}]"
        least = each.get("minCount")
        if least is not None and least < 1:
            found.append(
                (f"{path}.minCount", f"{least}: {path}.minCount in body should be greater than or equal to 1")
            )
        elif least is not None and least > each["count"]:
            found.append((path, "minCount should be positive and less or equal to count"))
    return found


def _true(obj: Object, kind: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _of_change(new: Object, old: Object) -> list[tuple[str, str]]:
    before, after = old["spec"], new["spec"]
    causes = []
    if _true(old, RESERVED):
        first, second = before.get("priorityClassRef"), after.get("priorityClassRef")
        if bool(first) != bool(second):
            causes.append("priorityClassRef is immutable while workload quota reserved")
        elif first and second:
            for field in ("group", "kind"):
                if first.get(field) != second.get(field):
                    causes.append(f"priorityClassRef.{field} is immutable while workload quota reserved")
            if second.get("group") == "scheduling.k8s.io" and first.get("name") != second.get("name"):
                causes.append(
                    "priorityClassRef.name is immutable for scheduling.k8s.io/priorityclass while workload quota reserved"
                )
        if _true(new, RESERVED) and before.get("queueName") != after.get("queueName"):
            causes.append("queueName is immutable while workload quota reserved")
    most = "maximumExecutionTimeSeconds"
    if _true(old, ADMITTED) and _true(new, ADMITTED) and before.get(most, 0) != after.get(most, 0):
        causes.append(f"{most} is immutable while workload quota reserved")
    admission = (new.get("status") or {}).get("admission")
    if _true(new, RESERVED) and admission and len(admission["podSetAssignments"]) != len(after["podSets"]):
        causes.append("podSetAssignments must have the same number of podSets as the spec")
    return [("<nil>", each) for each in causes]


def _denied(new: Object) -> list[str]:
    sets, annotations = new["spec"]["podSets"], new["metadata"].get("annotations") or {}
    found = []
    for index, each in enumerate(sets):
        for number, container in enumerate(each["template"]["spec"].get("containers") or ()):
            for part in ("requests", "limits"):
                if "pods" in ((container.get("resources") or {}).get(part) or {}):
                    path = f"spec.podSets[{index}].template.spec.containers[{number}].resources.{part}[pods]"
                    found.append(f'{path}: Invalid value: "pods": the key is reserved for internal kueue use')
    elastic = sum(each.get("minCount") is not None for each in sets)
    if elastic > 1:
        found.append(f"spec.podSets: Invalid value: {elastic}: at most one podSet can use minCount")
    if elastic and annotations.get(ELASTIC) == "true":
        found.append(
            f"spec.podSets: Invalid value: {elastic}: partial admission and elastic job cannot be used together"
        )
    return found


def _denied_change(new: Object, old: Object) -> list[str]:
    found = []
    status, before = new.get("status") or {}, old.get("status") or {}
    reserved, held = _true(new, RESERVED), _true(old, RESERVED)
    if reserved and not status.get("admission") and not (held and not before.get("admission")):
        found.append(
            "status.admission: Required value: must be set while the QuotaReserved condition is true"
        )
    if held:
        found += _changed_sets(new["spec"]["podSets"], old["spec"]["podSets"])
    now, was = status.get("admission"), before.get("admission")
    if now and was and _bare(now) != _bare(was):
        found.append(f"status.admission: Invalid value: {_quoted(now)}: field is immutable")
    ready = {each["name"]: each for each in before.get("admissionChecks") or () if each["state"] == "Ready"}
    for index, each in enumerate(status.get("admissionChecks") or ()):
        was = ready.get(each["name"])
        if was and each["state"] == "Ready" and each.get("podSetUpdates") != was.get("podSetUpdates"):
            path = f"status.admissionChecks[{index}].podSetUpdates"
            found.append(f"{path}: Invalid value: {_quoted(each.get('podSetUpdates'))}: field is immutable")
    gates = [(obj["metadata"].get("annotations") or {}).get(GATED_BY, "") for obj in (old, new)]
    if gates[1] and not gates[0]:
        found.append(f"metadata.annotations[{GATED_BY}]: Forbidden: cannot add admission gate after creation")
    return found


def _changed_sets(new: list[Object], old: list[Object]) -> list[str]:
    if len(new) != len(old):
        return [f"spec.podSets: Invalid value: {_quoted(new)}: field is immutable"]
    found = []
    for index, (after, before) in enumerate(zip(new, old, strict=True)):
        if after["count"] < before["count"]:
            after = after | {"count": before["count"]}  # giving some up is allowed
        if after != before:
            found.append(f"spec.podSets.{index}: Invalid value: {_quoted(after)}: field is immutable")
    return found


def _bare(admission: Object) -> Object:
    sets = [
        {
            key: value
            for key, value in each.items()
            if key not in ("topologyAssignment", "delayedTopologyRequest")
        }
        for each in admission["podSetAssignments"]
    ]
    return admission | {"podSetAssignments": sets}


def _quoted(value: Any) -> str:
    return json.dumps(as_in_go(value), separators=(",", ":"))


def as_in_go(value: Any, under: str = "", amounts: bool = False) -> Any:
    """Return a value as a program in Go writes it that has read it: quantities are strings."""
    if isinstance(value, list):
        return [as_in_go(each, under) for each in value]
    if isinstance(value, dict):
        first = _ORDER.get(under, ())
        keys = sorted(value, key=lambda key: (first.index(key) if key in first else len(first), key))
        quantities = under in ("limits", "requests")
        return {key: as_in_go(value[key], key, quantities) for key in keys}
    return str(value) if amounts else value
