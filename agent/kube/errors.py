"""The failures of a call to the API server: one type for each thing that a caller can act on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

MOST_RETRY_AFTER_SECONDS = 30.0
"""A proxy may ask for an hour; a worker that is silent for so long counts as lost, and a person waits."""


@dataclass(frozen=True)
class Cause:
    """One thing wrong with an object that was refused."""

    field: str
    message: str
    reason: str = ""

    def __str__(self) -> str:
        # What is wrong with the object as a whole has no path, which some API servers spell out.
        return self.message if self.field in ("", "<nil>") else f"{self.field}: {self.message}"


class ApiError(Exception):
    """The API server refused, or gave no answer. The message is one sentence for a person.

    Args:
        message: the sentence.
        status: the HTTP status; 0 if there was no answer.
        reason: the reason of the answer, such as `AlreadyExists`.
        causes: the causes in the answer's details.
        names_object: whether the answer speaks of one object. A 404 that does not means that the server has
            no such kind.
        retry_after_seconds: the answer's Retry-After, bounded; 0 without one.
    """

    def __init__(
        self,
        message: str,
        status: int = 0,
        reason: str = "",
        causes: tuple[Cause, ...] = (),
        *,
        names_object: bool = False,
        retry_after_seconds: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.causes = causes
        self.names_object = names_object
        self.retry_after_seconds = retry_after_seconds


class UnauthorizedError(ApiError):
    """401: the credentials are wrong, expired, or were rotated just now."""


class ForbiddenError(ApiError):
    """403: RBAC or admission refuses."""


class NotFoundError(ApiError):
    """404: there is no such object, or no such kind."""


class ConflictError(ApiError):
    """409: the object is there already, or has changed since it was read."""


class GoneError(ApiError):
    """The version to go on from is of no use: it is too old (410), or a watch made no sense. List again."""


class InvalidError(ApiError):
    """400, 413 or 422: the object does not pass validation."""


class UnavailableError(ApiError):
    """No answer, or one that says to try again later."""


class SilentWatchError(UnavailableError):
    """A watch has said nothing for so long that its connection may be dead."""


_TYPES = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: UnavailableError,
    409: ConflictError,
    410: GoneError,
    413: InvalidError,
    422: InvalidError,
    425: UnavailableError,
    429: UnavailableError,
}


def error_of(status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Return the typed error for an HTTP answer ≥ 400, with the server's own message.

    Args:
        retry_after: the answer's header Retry-After.
    """
    text = body.decode(errors="replace").strip()
    answer = _json(text)
    kind = _TYPES.get(status, UnavailableError if status >= 500 else ApiError)
    message = answer.get("message")
    if not isinstance(message, str):
        # A proxy's page tells a person nothing.
        message = _phrase(status) if not text or text.startswith("<") else text[:500]
    details = answer.get("details")
    details = details if isinstance(details, dict) else {}
    causes = details.get("causes")
    return kind(
        message,
        status,
        str(answer.get("reason") or ""),
        tuple(
            Cause(*(str(each.get(key) or "") for key in ("field", "message", "reason")))
            for each in (causes if isinstance(causes, list) else ())
            if isinstance(each, dict)
        ),
        names_object=bool(details.get("name")),
        retry_after_seconds=_seconds(retry_after),
    )


def _json(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"HTTP {status}"


def _seconds(retry_after: str | None) -> float:
    """Read a Retry-After in seconds. The API server sends no date, as a proxy may."""
    text = (retry_after or "").strip()
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return min(float(text), MOST_RETRY_AFTER_SECONDS) if is_number else 0.0
