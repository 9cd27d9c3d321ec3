"""Keeping up with one collection, as a state machine without I/O.

`want(state)` says what to ask the server next; `step(state, answer)` takes what came and returns the
events to tell plus the next state. The shell that performs the asking, and waits before asking again
after a `Failed`, is informer.py: back-off is its business, recovery is this module's.

    Empty ──page──▶ Paging ──last page──▶ Listed ──opened──▶ Watching ──╮
      ▲               │                    ▲  │                 │       │ events, bookmarks
      ╰──── 410 ──────┴──── 410 ───────────┼──┴───── 410 ───────┤ ◀─────╯
                                           ╰── end, idle, broken ╯

Recovery: a page that does not come is asked for again; if the server refuses it, the list begins anew, for
its token may be what is wrong. When a stream ends, idles out or breaks, the watch goes on from the last
resourceVersion, and nothing is missed. When the server has forgotten that version (HTTP 410, or 410 inside
the stream), or does not know it yet (its storage was restored), everything is listed again and replaced at
one stroke.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from controller.errors import ApiError, Gone, NotFound, PageTooLarge, Refused, TimedOut, error_of_status
from controller.resources import Object
from controller.salvage import TOO_DEEP, Unreadable, named, strange_parts

# --- states


@dataclass(frozen=True)
class Empty:
    """Nothing listed yet. `paged` is False after a page token expired: then ask for all in one piece."""

    paged: bool = True


@dataclass(frozen=True)
class Paging:
    """Next pages of a list are missing."""

    items: tuple[Object, ...]
    continue_token: str
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True)
class Listed:
    """Complete up to `resource_version`; no watch open."""

    resource_version: str


@dataclass(frozen=True)
class Watching:
    """A watch is open, and complete up to `resource_version`."""

    resource_version: str


State: TypeAlias = Empty | Paging | Listed | Watching

# --- what to ask next


@dataclass(frozen=True)
class FetchPage:
    continue_token: str | None
    paged: bool


@dataclass(frozen=True)
class OpenWatch:
    resource_version: str


@dataclass(frozen=True)
class ReadStream:
    pass


Want: TypeAlias = FetchPage | OpenWatch | ReadStream

# --- what came


@dataclass(frozen=True)
class Page:
    items: tuple[Object, ...]
    resource_version: str
    continue_token: str | None = None
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True)
class Opened:
    pass


@dataclass(frozen=True)
class Streamed:
    """One event of the stream, as the server wrote it: `{"type": …, "object": …}`."""

    event: Object
    is_cut: bool = False
    """Whether something in it was nested too deeply, and is not there."""


@dataclass(frozen=True)
class Ended:
    """The stream ended in good order: the server does that every few minutes."""


@dataclass(frozen=True)
class Idled:
    """Nothing came for so long that the connection may be dead."""


@dataclass(frozen=True)
class Broke:
    """A call or the stream failed."""

    error: ApiError


Answer: TypeAlias = Page | Opened | Streamed | Ended | Idled | Broke

# --- what to tell


@dataclass(frozen=True)
class Replaced:
    """The whole collection, to be swapped in at one stroke: what is not in it is gone."""

    items: tuple[Object, ...]
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True)
class Applied:
    obj: Object


@dataclass(frozen=True)
class Deleted:
    obj: Object


@dataclass(frozen=True)
class Skipped:
    """An object appeared or changed, and cannot be read; the watch goes on behind it."""

    found: Unreadable


@dataclass(frozen=True)
class Failed:
    """Something went wrong; wait a little before the next ask."""

    error: ApiError


Event: TypeAlias = Replaced | Applied | Deleted | Skipped | Failed


class UnexpectedAnswer(ApiError):
    """The server sent something no watch should carry."""


def want(state: State) -> Want:
    match state:
        case Empty(paged):
            return FetchPage(None, paged)
        case Paging(_, continue_token):
            return FetchPage(continue_token, True)
        case Listed(resource_version):
            return OpenWatch(resource_version)
        case Watching():
            return ReadStream()


def step(state: State, answer: Answer) -> tuple[list[Event], State]:
    """What `answer`, given to what `want(state)` asked, means."""
    match state, answer:
        case ((Empty() | Paging()), Page()):
            return _paged(state, answer)
        case Empty(), Broke(error):
            too_much = isinstance(error, PageTooLarge | TimedOut)
            return [Failed(error)], Empty() if too_much else state
        case Paging(), Broke(Gone()):
            return [], Empty(paged=False)
        case Paging(), Broke(error):
            return [Failed(error)], Empty() if isinstance(error, Refused) else state
        case Listed(resource_version), Opened():
            return [], Watching(resource_version)
        case Watching(), Streamed():
            return _streamed(state, answer)
        case Watching(resource_version), Ended() | Idled():
            return [], Listed(resource_version)
        case ((Listed() | Watching()), Broke(error)):
            return _broke(state.resource_version, error)
    raise AssertionError(f"{type(answer).__name__} answers nothing asked in {type(state).__name__}")


def _paged(state: Empty | Paging, page: Page) -> tuple[list[Event], State]:
    items, unreadable = page.items, page.unreadable
    if isinstance(state, Paging):
        items, unreadable = state.items + items, state.unreadable + unreadable
    if page.continue_token:
        return [], Paging(items, page.continue_token, unreadable)
    return [Replaced(items, unreadable)], Listed(page.resource_version)


def _streamed(state: Watching, answer: Streamed) -> tuple[list[Event], State]:
    event, obj = answer.event, answer.event.get("object")
    if not isinstance(obj, dict):
        return _broke(state.resource_version, UnexpectedAnswer(f"a watch event without object: {event}"))
    match event.get("type"):
        case "ERROR":
            code = obj.get("code")
            error = error_of_status(obj, code if isinstance(code, int) else 500)
            return _broke(state.resource_version, error)
        case "ADDED" | "MODIFIED" | "DELETED" as type_ if reason := _why_unreadable(obj, answer.is_cut):
            found = Unreadable(named(obj), reason)
            is_gone = type_ == "DELETED" and found.has_name
            return [Deleted(found.obj) if is_gone else Skipped(found)], _at_version_of(state, obj)
        case "ADDED" | "MODIFIED":
            return [Applied(obj)], _at_version_of(state, obj)
        case "DELETED":
            return [Deleted(obj)], _at_version_of(state, obj)
        case "BOOKMARK":
            return [], _at_version_of(state, obj)
        case other:
            return _broke(state.resource_version, UnexpectedAnswer(f"a watch event of type {other!r}"))


def _why_unreadable(obj: Object, is_cut: bool) -> str | None:
    return strange_parts(obj) or (TOO_DEEP if is_cut else None)


def _at_version_of(state: Watching, obj: Object) -> Watching:
    metadata = obj.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return replace(state, resource_version=version) if version and isinstance(version, str) else state


def _broke(resource_version: str, error: ApiError) -> tuple[list[Event], State]:
    """Go on from where we were, unless only a new list can help.

    A watch that is 404 lost its CRD; when that comes back its objects are others.
    """
    if isinstance(error, Gone):
        return [], Empty()
    if isinstance(error, NotFound) or _version_is_ahead(error):
        return [Failed(error)], Empty()
    return [Failed(error)], Listed(resource_version)


def _version_is_ahead(error: ApiError) -> bool:
    """The server is behind the resourceVersion we hold (its storage was restored): only a list mends it."""
    if any(cause.reason == "ResourceVersionTooLarge" for cause in error.causes):
        return True
    return "Too large resource version" in str(error)
