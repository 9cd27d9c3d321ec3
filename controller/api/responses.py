"""Reading the API server's answers: a dict, or a typed error."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from operator import not_

import orjson

from controller import salvage
from controller.errors import ApiError, ClientError, Unavailable, api_error
from controller.resources import Object, Resource
from controller.salvage import TOO_DEEP, Unreadable


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
        raise Unavailable(
            f"the API server answered HTTP {answer.status} with something that is not JSON ({error}); "
            "is the address really a Kubernetes API server?",
            status=answer.status,
        ) from error
    if not isinstance(parsed, dict):
        raise Unavailable(f"the API server answered with a {type(parsed).__name__}, not an object")
    return parsed


def raise_for(answer: Answer) -> None:
    if answer.status >= 400:
        raise error_of(answer)


async def read_page(answer: Answer) -> Object:
    """The parsed page of a list; `unreadable` has its objects that are nested too deeply."""
    raise_for(answer)
    try:
        return read_object(answer)
    except Unavailable:
        with suppress(orjson.JSONDecodeError, KeyError, TypeError):
            page = await salvage.parsed_shallow(answer.body)
            cut = [salvage.is_cut(item) for item in page["items"]]
            unreadable = [Unreadable(salvage.named(obj), TOO_DEEP) for obj in compress(page["items"], cut)]
            items = list(compress(page["items"], map(not_, cut)))
            return {"metadata": page["metadata"], "items": items, "unreadable": unreadable}
        raise


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
