"""Lists that a page asks for again and again: read once, and kept up by a watch.

From one second to the next few of a thousand workers change, and to list them all costs the API server, and
whoever reads them, a good part of a tenth of a second. A watch is not resumed: when it is over, for whatever
reason (its time, a version that is too old, a connection that is cut or dead, a missing right), the next
question is answered by a list, which says what is wrong.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from agent.kube.api import ResponseStream
from controller.errors import ApiError, Forbidden
from dlr.kube.api import JSON, Api, Collection, Resource

Objects = dict[tuple[str, str], JSON]
"""By namespace and name."""

WATCH_SECONDS = 600
SILENT_SECONDS = 90.0
"""A watch that tells nothing for so long may be dead: servers send a bookmark about once a minute."""
LEAST_BACKLOG = 1_000
"""So many events may wait at least. More of them than there are objects cost more than a list."""


class WatchingApi(Api):
    """The same API server, with lists that are kept up. For one thread at a time.

    What `find` gives is shared with what it gives later: never change it.
    """

    def __init__(self, api: Api) -> None:
        vars(self).update(vars(api))
        self._watched: dict[Collection, Watched] = {}

    def find(
        self,
        kind: Resource,
        *,
        all_namespaces: bool = False,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[JSON]:
        collection = Collection(kind, all_namespaces, label_selector, field_selector)
        return self._watched.setdefault(collection, Watched(collection)).read(self)

    def forget(self) -> None:
        """Nobody asks for the time being."""
        for each in self._watched.values():
            each.forget()
        self._watched.clear()


class Watched:
    """One collection as it was listed, with what a watch has told since."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._objects: Objects = {}
        self._watch: Watch | None = None

    def read(self, api: Api) -> list[JSON]:
        """Read all items, in the order of a list.

        Raises:
            ApiError: it had to be listed, and could not be.
        """
        if self._watch is None or self._watch.is_over:
            self._list(api)
        else:
            take_in(self._watch.news(), self._objects)
        return [self._objects[key] for key in sorted(self._objects)]

    def _list(self, api: Api) -> None:
        self.forget()
        items, version = api.listing(self._collection)
        self._objects = {_key_of(each): _trimmed(each) for each in items}
        if self._watch is None or not self._watch.is_refused:
            self._watch = Watch(api, self._collection, version, max(LEAST_BACKLOG, len(items)))

    def forget(self) -> None:
        if self._watch is not None:
            self._watch.end()
        before, self._objects = [*self._objects.values()], {}
        while before:  # one by one: ten thousand at once let no other thread run for 0.08 s
            before.pop()


class Watch:
    """The events of one watch, as a thread of its own takes them from the server."""

    def __init__(self, api: Api, collection: Collection, version: str, most: int) -> None:
        self.is_over = False
        """There are no more, or nobody wants them."""
        self.is_refused = False
        """For want of the right to watch."""
        self._events: deque[JSON] = deque()
        self._answer: ResponseStream[JSON] | None = None
        arguments = (api, collection, version, most)
        threading.Thread(target=self._follow, args=arguments, name="dlr-watch", daemon=True).start()

    def news(self) -> Iterator[JSON]:
        """The events that have come since the last call."""
        while self._events:
            yield self._events.popleft()

    def end(self) -> None:
        """Nobody wants them any more: the thread and its connection go at once."""
        self.is_over = True
        if self._answer is not None:
            self._answer.hang_up()

    def _follow(self, api: Api, collection: Collection, version: str, most: int) -> None:
        try:
            with api.watch(
                collection, version, seconds=WATCH_SECONDS, silent_seconds=SILENT_SECONDS
            ) as answer:
                self._answer = answer
                if self.is_over:  # since before there was something to hang up
                    return
                for event in answer:
                    if len(self._events) >= most:
                        return
                    self._events.append(event)
        except ApiError as error:  # a list follows, and tells
            self.is_refused = isinstance(error, Forbidden)
        finally:
            self.is_over = True


def take_in(events: Iterable[JSON], objects: Objects) -> None:
    """Make of the objects what the events of a watch tell of them."""
    for event in events:
        key = _key_of(event["object"])
        if event["type"] == "DELETED":
            objects.pop(key, None)
        elif event["type"] != "BOOKMARK":
            objects[key] = _trimmed(event["object"])


def _key_of(item: JSON) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata.get("name", "")


def _trimmed(item: JSON) -> JSON:
    """Return the item without managedFields: a third of an object that no page shows."""
    item["metadata"].pop("managedFields", None)
    return item
