"""Lists, whole or page by page. All pages of a list show one moment."""

from __future__ import annotations

import base64
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from localcluster.apiserver.errors import (
    bad_request,
    expired,
    resource_version_too_large,
)
from localcluster.apiserver.requests import Context
from localcluster.apiserver.selection import Selection
from localcluster.apiserver.store import Store, Stored
from localcluster.resource import JSON

SNAPSHOTS_MAX = 64
SNAPSHOT_LIFETIME_SECONDS = 300.0
_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You must start a new "
    "list without the continue parameter."
)


@dataclass(frozen=True)
class Page:
    """A part of a list, and how to go on."""

    items: Sequence[Stored]
    metadata: JSON


@dataclass(frozen=True)
class _Snapshot:
    """Remaining objects of a paged list."""

    collection: str
    version: int
    items: Sequence[Stored]
    filtered: bool
    ends_at: float


class Lists:
    """Answers lists, and keeps what later pages will show."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[str, _Snapshot] = OrderedDict()

    def page(self, context: Context, collection: str, selection: Selection, now: float) -> Page:
        """One page; `now` is monotonic."""
        limit = context.integer("limit") or 0
        token = context.query.get("continue")
        if token:
            snapshot, start = self._resume(token, collection, now)
        else:
            self._check_version(context)
            items = self._select(collection, selection)
            ends_at = now + SNAPSHOT_LIFETIME_SECONDS
            snapshot = _Snapshot(collection, self._store.version, items, selection.is_filtered, ends_at)
            start = 0
        end = start + limit if limit else len(snapshot.items)
        metadata: JSON = {"resourceVersion": str(snapshot.version)}
        if end < len(snapshot.items):
            metadata["continue"] = self._keep(token, snapshot, end)
            if not snapshot.filtered:
                metadata["remainingItemCount"] = len(snapshot.items) - end
        return Page(snapshot.items[start:end], metadata)

    def _select(self, collection: str, selection: Selection) -> list[Stored]:
        if selection.name is not None and selection.namespace is not None:
            found = self._store.get(collection, selection.namespace, selection.name)
            matches = found is not None and (selection.selects is None or selection.selects(found.obj))
            return [found] if found is not None and matches else []
        candidates = self._store.select(collection, selection.namespace)
        return [stored for key, stored in candidates if selection.matches(key, stored.obj)]

    def _check_version(self, context: Context) -> None:
        """Only the present can be listed, which suffices for every request but `Exact` ones of the past."""
        asked = context.integer("resourceVersion")
        if asked is not None and asked > self._store.version:
            raise resource_version_too_large(asked, self._store.version)
        if context.query.get("resourceVersionMatch") == "Exact" and asked != self._store.version:
            raise expired(f"The resourceVersion for the provided list is too old: {asked}")

    def _keep(self, token: str | None, snapshot: _Snapshot, position: int) -> str:
        name = secrets.token_hex(8) if token is None else _read_token(token)[0]
        self._snapshots[name] = snapshot
        self._snapshots.move_to_end(name)
        while len(self._snapshots) > SNAPSHOTS_MAX:
            self._snapshots.popitem(last=False)
        return base64.urlsafe_b64encode(orjson.dumps([name, position])).decode()

    def _resume(self, token: str, collection: str, now: float) -> tuple[_Snapshot, int]:
        name, position = _read_token(token)
        for old in [key for key, kept in self._snapshots.items() if kept.ends_at <= now]:
            del self._snapshots[old]
        snapshot = self._snapshots.get(name)
        if snapshot is None or snapshot.collection != collection:
            raise expired(_CONTINUE_EXPIRED)
        return snapshot, position


def _read_token(token: str) -> tuple[str, int]:
    try:
        name, position = orjson.loads(base64.urlsafe_b64decode(token))
        if isinstance(name, str) and isinstance(position, int) and position >= 0:
            return name, position
    except (ValueError, TypeError):
        pass
    raise bad_request("continue key is not valid")
