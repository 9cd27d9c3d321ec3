"""Reading the API server's answers: a dict, or a typed error."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from controller import salvage
from controller.errors import ApiError, ClientError, PageTooLarge, Unavailable, api_error
from controller.resources import Object, Resource
from controller.salvage import Unreadable


@dataclass(frozen=True)
class Answer:
    """What came back, whole."""

    status: int
    body: bytes
    retry_after: str | None = None

    @property
    def took_storage(self) -> bool:
        """Whether the server must have reached its storage to say this.

        401 and 403 come before it, 429 instead of it, 5xx for want of it.
        """
        return self.status < 500 and self.status not in (401, 403, 429)


def read_object(answer: Answer) -> Object:
    """The parsed body of a success; raises the typed error of anything else."""
    raise_for(answer)
    try:
        parsed = salvage.parsed(answer.body)
    except orjson.JSONDecodeError as error:
        raise _no_json(answer, error) from error
    if not isinstance(parsed, dict):
        raise Unavailable(f"the API server answered with a {type(parsed).__name__}, not an object")
    return parsed


def raise_for(answer: Answer) -> None:
    if answer.status >= 400:
        raise error_of(answer)


async def read_page(answer: Answer, most_scan_bytes: int | None) -> Object:
    """The parsed page of a list, object by object where one of them cannot be parsed: `unreadable` has those.

    Raises:
        PageTooLarge: that would be more than so many bytes to look through.
        Unavailable: it is no list.
    """
    raise_for(answer)
    try:
        return read_object(answer)
    except Unavailable as error:
        if most_scan_bytes is not None and len(answer.body) > most_scan_bytes:
            raise PageTooLarge(len(answer.body), most_scan_bytes) from error
        found = await salvage.in_thread(salvage.items_of, answer.body)
        if found is None:
            raise
    metadata, texts = found
    read = [await salvage.read(text) for text in texts]
    return {
        "metadata": metadata,
        "items": [obj for obj in read if not isinstance(obj, Unreadable)],
        "unreadable": [obj for obj in read if isinstance(obj, Unreadable)],
    }


def _no_json(answer: Answer, error: ValueError) -> Unavailable:
    return Unavailable(
        f"the API server answered HTTP {answer.status} with something that is not JSON ({error}); "
        "is the address really a Kubernetes API server?",
        status=answer.status,
    )


def error_of(answer: Answer) -> ClientError:
    try:
        parsed = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        parsed = None
    status = parsed if isinstance(parsed, dict) else {}
    return error_of_status(status, http_status=answer.status, retry_after=answer.retry_after)


def error_of_status(status: Object, *, http_status: int, retry_after: str | None = None) -> ClientError:
    """The error in a `Status` object, from a response or from inside a watch stream."""
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"the API server answered HTTP {http_status}")
    details = status.get("details") or {}
    if http_status == 429 or http_status >= 500:
        return Unavailable(
            message,
            status=http_status,
            retry_after_seconds=_seconds(retry_after) or _seconds(details.get("retryAfterSeconds")),
            processed=http_status != 429,
        )
    return api_error(http_status, reason, message, details)


def version_is_ahead(error: ClientError) -> bool:
    """The server is behind the resourceVersion we hold (its storage was restored): only a list mends it."""
    causes = error.details.get("causes") or [] if isinstance(error, ApiError) else []
    if any(cause.get("reason") == "ResourceVersionTooLarge" for cause in causes):
        return True
    return "Too large resource version" in str(error)


def complete_items(page: Object, resource: Resource) -> list[Object]:
    """The items of a list; the server leaves apiVersion and kind out of them, we put them back."""
    items: list[Object] = page.get("items") or []
    for item in items:
        if isinstance(item, dict):
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
    return items


def _seconds(value: object) -> float | None:
    try:
        return max(0.0, float(value)) if value else None  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
