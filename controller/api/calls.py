"""Requests to the API server and their answers, as data; `transport.py` sends and brings them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from controller import salvage
from controller.errors import Unavailable, error_of
from controller.resources import Object, Resource
from controller.salvage import TOO_DEEP, Unreadable

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"


@dataclass(frozen=True)
class Call:
    """One HTTP request, less host and credentials."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = JSON
    most_bytes: int | None = None
    """The greatest size of the answer; None for any size."""

    @property
    def is_read(self) -> bool:
        """Asking twice does no harm."""
        return self.method == "GET"

    @property
    def may_wait_for_webhooks(self) -> bool:
        """Whether the cluster's admission webhooks usually see it, so that its answer is as late as theirs.

        They see no reads; status they may see, but rarely ask for.
        """
        return not self.is_read and not self.path.endswith("/status")


def query_of(**parameters: object) -> dict[str, str]:
    """The parameters that have a value, as text. `continue_` stands for Python's keyword."""
    return {name.rstrip("_"): str(value) for name, value in parameters.items() if value}


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

    def raise_for_status(self) -> None:
        if self.status >= 400:
            raise error_of(self.status, self.body, self.retry_after)


def read_object(answer: Answer) -> Object:
    """The parsed body of a success; raises the typed error of anything else."""
    answer.raise_for_status()
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


async def read_page(answer: Answer, resource: Resource) -> Object:
    """The parsed page of a list, with its size in `bytes`.

    `unreadable` has its objects that are nested too deeply. The server leaves apiVersion and kind out of the
    others; they are put back.
    """
    unreadable: list[Unreadable] = []
    try:
        page = read_object(answer)
    except Unavailable:
        if answer.status >= 400:
            raise
        try:
            page = await salvage.parsed_shallow(answer.body)
            cut = [item for item in page["items"] if salvage.is_cut(item)]
            unreadable = [Unreadable(salvage.named(item), TOO_DEEP) for item in cut]
            page["items"] = [item for item in page["items"] if not salvage.is_cut(item)]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            page = {}
        if not page:
            raise
    items = page.get("items") or []
    for item in items:
        if isinstance(item, dict):
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
    return {**page, "items": items, "unreadable": unreadable, "bytes": len(answer.body)}
