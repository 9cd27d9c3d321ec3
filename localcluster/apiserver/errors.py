"""Failures as Kubernetes words them: clients decide by `reason` and `details`, people read `message`."""

from __future__ import annotations

from collections.abc import Sequence

from localcluster.resource import JSON, ResourceType


class ApiError(Exception):
    """A failed request; `status()` is what its client gets."""

    allowed: Sequence[str] = ()
    """The allowed methods, if another was used and any are."""

    def __init__(self, code: int, reason: str, message: str, details: JSON | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> JSON:
        status: JSON = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details:
            status["details"] = self.details
        return status


def _about(resource_type: ResourceType, name: str) -> JSON:
    details: JSON = {"kind": resource_type.plural}
    if name:
        details["name"] = name
    if resource_type.group:
        details["group"] = resource_type.group
    return details


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource_type: ResourceType, name: str, why: str) -> ApiError:
    named = f' "{name}"' if name else ""
    message = f"{resource_type.group_resource}{named} is forbidden: {why}"
    return ApiError(403, "Forbidden", message, _about(resource_type, name))


def not_found(resource_type: ResourceType, name: str) -> ApiError:
    message = f'{resource_type.group_resource} "{name}" not found'
    return ApiError(404, "NotFound", message, _about(resource_type, name))


def no_such_path() -> ApiError:
    # Its details are what client-go makes of the plain text of a real server; kubectl debug panics without.
    return ApiError(404, "NotFound", "the server could not find the requested resource", {"causes": []})


def method_not_allowed(
    what: str = "the server does not allow this method on the requested resource",
    *,
    allowed: Sequence[str] = (),
) -> ApiError:
    error = ApiError(405, "MethodNotAllowed", what)
    error.allowed = allowed
    return error


def not_acceptable(accepted: str) -> ApiError:
    message = f"only the following media types are accepted: {accepted}"
    return ApiError(406, "NotAcceptable", message)


def already_exists(resource_type: ResourceType, name: str) -> ApiError:
    message = f'{resource_type.group_resource} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _about(resource_type, name))


def conflict(resource_type: ResourceType, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {resource_type.group_resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, _about(resource_type, name))


def apply_conflict(message: str, causes: Sequence[tuple[str, str]]) -> ApiError:
    """An apply that would change what others own: a message and a path for each such field."""
    named = [cause(path, "FieldManagerConflict", why) for why, path in causes]
    return ApiError(409, "Conflict", message, {"causes": named})


def modified_meanwhile(resource_type: ResourceType, name: str) -> ApiError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource_type, name, why)


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def too_large(limit_bytes: int) -> ApiError:
    message = f"Request entity too large: limit is {limit_bytes}"
    return ApiError(413, "RequestEntityTooLarge", message)


def too_large_to_store() -> ApiError:
    """Return etcd's error, which an API server passes on without a reason."""
    return ApiError(500, "", "etcdserver: request is too large")


def unsupported_media_type(message: str) -> ApiError:
    return ApiError(415, "UnsupportedMediaType", message)


def rejected_patch(message: str) -> ApiError:
    """A JSON patch that does not fit the object it is for."""
    return ApiError(422, "Invalid", message)


def resource_version_too_large(asked: int, current: int) -> ApiError:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiError(504, "Timeout", message, details)


def cause(field: str, reason: str, message: str) -> JSON:
    """One field's fault: its path, Kubernetes' reason (`FieldValueInvalid`, ...) and the text."""
    return {"reason": reason, "message": message, "field": field}


def required(field: str, why: str = "") -> JSON:
    return cause(field, "FieldValueRequired", f"Required value: {why}" if why else "Required value")


def invalid_value(field: str, value: object, why: str) -> JSON:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return cause(field, "FieldValueInvalid", f"Invalid value: {shown}: {why}")


def forbidden_field(field: str, why: str) -> JSON:
    return cause(field, "FieldValueForbidden", f"Forbidden: {why}")


def invalid(resource_type: ResourceType, name: str, causes: Sequence[JSON]) -> ApiError:
    """422, naming every field at fault."""
    kind = f"{resource_type.kind}.{resource_type.group}" if resource_type.group else resource_type.kind
    faults = [f"{fault['field']}: {fault['message']}" for fault in causes]
    listed = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    details: JSON = {"name": name, "kind": resource_type.kind, "causes": list(causes)}
    if resource_type.group:
        details["group"] = resource_type.group
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {listed}', details)
