"""What can go wrong when talking to the API server: one type per thing a caller can act on.

`ApiError` and its subclasses are the server's own refusals: asking again changes nothing until
something else does. `Unavailable` is the absence of a usable answer: asking again later may help, and a
write that ended so may or may not have happened. `ConfigError` is a person's to mend.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


class ClientError(Exception):
    """Any failure of a call to the API server."""


class ConfigError(ClientError):
    """There is no usable way to the API server: an unreadable kubeconfig, a missing context."""


class Unavailable(ClientError):
    """No usable answer: a time-out, a broken connection, 429 or 5xx."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        processed: bool = True,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.processed = processed
        """False when the server surely did not act on the request (never connected, or 429)."""


class TimedOut(Unavailable):
    """No answer in time."""


class PageTooLarge(ClientError):
    """A page of a list is larger than it may be; the rest of it was not read."""

    def __init__(self, size_bytes: int, wanted_bytes: int) -> None:
        super().__init__(f"a page of a list has more than {size_bytes} bytes")
        self.size_bytes = size_bytes
        self.wanted_bytes = wanted_bytes


class ApiError(ClientError):
    """The API server answered, and refused."""

    def __init__(
        self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message or reason or f"HTTP {status}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details: dict[str, Any] = dict(details or {})


class Unauthorized(ApiError):
    """401: the credentials are missing, wrong or expired."""


class Forbidden(ApiError):
    """403: RBAC or admission refuses."""


class NamespaceTerminating(ApiError):
    """403 on create: the namespace is being deleted; nothing can be made there any more."""


class NotFound(ApiError):
    """404: no such object, or no such resource (is the CRD installed?)."""


class AlreadyExists(ApiError):
    """409 on create: an object of this name is there."""


class Conflict(ApiError):
    """409 on write: the object changed since it was read, or a precondition failed."""


class Gone(ApiError):
    """410: this resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """400 or 422: the object does not pass validation; `details["causes"]` names the fields."""


class InvalidStatus(Invalid):
    """The same of a write of status. What computed it would compute the same again: it is not retried."""


def api_error(status: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> ApiError:
    """The typed error for a refusal."""
    causes = (details or {}).get("causes") or ()
    return _type_of(status, reason, {cause.get("reason") for cause in causes})(
        status, reason, message, details
    )


def _type_of(status: int, reason: str, causes: Collection[str | None]) -> type[ApiError]:
    if status == 409:
        return AlreadyExists if reason == "AlreadyExists" else Conflict
    if status == 403 and "NamespaceTerminating" in causes:
        return NamespaceTerminating
    return _TYPES.get(status, ApiError)


_TYPES: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    410: Gone,
    422: Invalid,
}
