"""Errors of calls to an API server: one type for each case that a caller can act on.

`Refused` and its subclasses are refusals of the server: repeating the request is useless until something
changes. `Unavailable` means that there was no usable answer: a later retry may help, and a write may or
may not have happened. `ConfigError` needs a person. Controller, agent, commands and embedded cluster share
this module, so it imports only the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

MOST_RETRY_AFTER_SECONDS = 30.0
"""Maximum Retry-After that is honoured. A proxy may ask for an hour, but a worker that is silent for so long
counts as lost."""
_MOST_CHARACTERS = 500
_NOT_ALL_CHECKED = "some validation rules were not checked"
"""Text that an API server adds to refusals of an object; it is not an error of the object."""
_DENIED = ("denied the request", "denied request")
"""Texts of refusals by webhooks and ValidatingAdmissionPolicies, which may have any code: 400 if a webhook
gives none, 422 by default for a policy
(https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/)."""
_NO_WEBHOOK = "failed calling webhook"
"""Text of an API server's internal error when a webhook does not answer."""
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""Texts of etcd's refusals of an object that is too large, which an API server passes on with code 500
(kubernetes/kubernetes#112152)."""
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class Error(Exception):
    """Error of dlr that a person has to act on; the message is one sentence."""


@dataclass(frozen=True)
class StatusCause:
    """One error in an object that was refused."""

    field: str
    message: str
    reason: str = ""

    def __str__(self) -> str:
        # An error of the object as a whole has no path; some API servers write one for that.
        if self.field in ("", "<nil>"):
            return self.message
        # For a CRD's field, Kubernetes' message repeats the path: "Invalid value: 0: spec.a in body must …".
        return f"{self.field}: {self.message.replace(f': {self.field} in body ', ': ', 1)}"


class ApiError(Error):
    """A call to the API server failed. The message is one sentence for a person.

    Args:
        message: the sentence.
        status: the HTTP status; 0 if there was no answer.
        reason: the reason of the answer, such as `AlreadyExists`.
        details: the details of the answer.
        retry_after_seconds: the answer's Retry-After, bounded; 0 without one.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after_seconds: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.details = dict(details or {})
        self.retry_after_seconds = retry_after_seconds

    @property
    def names_object(self) -> bool:
        """Whether the answer names an object. A 404 that does not means that the kind does not exist."""
        return bool(self.details.get("name"))

    @property
    def causes(self) -> tuple[StatusCause, ...]:
        found = self.details.get("causes")
        return tuple(
            StatusCause(*(str(each.get(key) or "") for key in ("field", "message", "reason")))
            for each in (found if isinstance(found, list | tuple) else ())
            if isinstance(each, dict) and _NOT_ALL_CHECKED not in str(each.get("message"))
        )


class ConfigError(ApiError):
    """There is no usable way to the API server: an unreadable kubeconfig, a missing context."""


class Unavailable(ApiError):
    """No usable answer: a time-out, a broken connection, 408, 425, 429 or 5xx.

    Args:
        processed: False if the server certainly did not process the request (never connected, or 429).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after_seconds: float = 0.0,
        processed: bool = True,
    ) -> None:
        super().__init__(
            message, status=status, reason=reason, details=details, retry_after_seconds=retry_after_seconds
        )
        self.processed = processed


class WebhookUnavailable(Unavailable):
    """5xx: a webhook that the API server has to call for the object does not answer."""


class TimedOut(Unavailable):
    """No answer in time."""


class SilentWatch(Unavailable):
    """A watch was silent for so long that its connection may be dead."""


class TooLarge(ApiError):
    """An answer is larger than it may be, and was not read."""


class PageTooLarge(TooLarge):
    """A page of a list has too many bytes; the rest of it was not read."""

    def __init__(self, size_bytes: int, wanted_bytes: int) -> None:
        super().__init__(f"an answer has more than {size_bytes} bytes")
        self.size_bytes = size_bytes
        self.wanted_bytes = wanted_bytes


class Refused(ApiError):
    """The API server answered, and refused."""

    def __init__(
        self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message or reason or f"HTTP {status}", status=status, reason=reason, details=details)


class Unauthorized(Refused):
    """401: the credentials are missing, wrong, expired, or were rotated just now."""


class Forbidden(Refused):
    """403: RBAC or admission refuses."""


class NamespaceTerminating(Refused):
    """403: the namespace is being deleted; nothing can be created there."""


class NotFound(Refused):
    """404: there is no such object, or no such kind (is the CRD installed?)."""


class AlreadyExists(Refused):
    """409 on create: an object with this name exists."""


class Conflict(Refused):
    """409 on write: the object changed since it was read, or a precondition failed."""


class Gone(Refused):
    """410: the resourceVersion or continue token is no longer usable, or a watch makes no sense: list
    again."""


class Invalid(Refused):
    """400, 413 or 422: the object does not pass validation, or has no room in etcd; the causes name the
    fields."""


class InvalidStatus(Invalid):
    """Invalid, on a write of status. It is not retried, because the same status would be computed again."""


_TYPES = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    422: Invalid,
}


def is_denial(error: ApiError) -> bool:
    """Whether a webhook or a policy refuses the object."""
    return any(word in str(error) for word in _DENIED)


def error_of(status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Return the typed error for an HTTP answer ≥ 400, with the server's own message.

    Args:
        retry_after: the answer's header Retry-After.
    """
    answer = _parsed(body)
    if not isinstance(answer.get("message"), str):
        text = body.decode(errors="replace").strip()
        # A proxy's page is of no use to a person.
        words = _phrase(status) if not text or text[0] in "<{[" else text[:_MOST_CHARACTERS]
        answer = {**answer, "message": words}
    return error_of_status(answer, status, retry_after)


def speaks_as_api_server(body: bytes) -> bool:
    """Return whether an answer is a `Status` with a message; a webhook's may have no reason."""
    answer = _parsed(body)
    return answer.get("kind") == "Status" and bool(answer.get("message"))


def _parsed(body: bytes) -> Mapping[str, Any]:
    """Return the object of an answer; an empty one if there is none."""
    try:
        answer = json.loads(body.decode(errors="replace"))
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def error_of_status(answer: Mapping[str, Any], status: int, retry_after: str | None = None) -> ApiError:
    """Return the typed error for a `Status`, from an answer or from a watch."""
    reason, message = str(answer.get("reason") or ""), str(answer.get("message") or _phrase(status))
    details = answer.get("details")
    details = details if isinstance(details, dict) else {}
    if status == 500 and any(words in message for words in _TOO_LARGE):
        return Invalid(
            status, reason, f"the object is too large for the API server to store: {message}", details
        )
    if status in (408, 425, 429) or status >= 500:
        unavailable = WebhookUnavailable if _NO_WEBHOOK in message else Unavailable
        return unavailable(
            message,
            status=status,
            reason=reason,
            details=details,
            retry_after_seconds=_seconds(retry_after) or _seconds(details.get("retryAfterSeconds")),
            processed=status != 429,
        )
    kind = _TYPES.get(status, Refused)
    error = kind(status, reason, message, details)
    if kind is Conflict and reason == "AlreadyExists":
        return AlreadyExists(status, reason, message, details)
    if kind is Forbidden and any(cause.reason == "NamespaceTerminating" for cause in error.causes):
        return NamespaceTerminating(status, reason, message, details)
    return error


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"HTTP {status}"


def _seconds(value: object) -> float:
    """Read a number of seconds. Only proxies send dates, which are ignored."""
    text = str(value or "").strip()
    return min(float(text), MOST_RETRY_AFTER_SECONDS) if _SECONDS.fullmatch(text) else 0.0
