"""Next request to the API server for a copy of a collection: a state machine without I/O or clock.

It lists in pages, and watches from there, as client-go's Reflector does. A missing page is requested
again; if the server refuses it, the list starts over, because its token may be the cause. A stream that
ends, falls silent or breaks continues from the last resourceVersion, without gaps. If the server has
forgotten that version (410, also inside the stream), or does not have it yet (its storage was restored),
everything is listed again. https://github.com/kubernetes/client-go/blob/master/tools/cache/reflector.go
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from controller.api.pages import MOST_WHOLE_BYTES, PageSize
from controller.backoff import Backoff
from controller.errors import ApiError, Gone, NotFound, PageTooLarge, Refused, TimedOut, Unavailable


@dataclass(frozen=True)
class WatchTiming:
    """Time limits of silent watches, and waits after failures.

    Bookmarks come about once a minute at best, and are not guaranteed, so a quiet collection times out now
    and then: that costs one watch request from the last version, never a list.
    """

    idle_timeout_seconds: float = 45.0
    server_timeout_seconds: int = 300
    useful_stream_seconds: float = 5.0
    backoff_base_seconds: float = 0.2
    backoff_cap_seconds: float = 15.0
    """Longest wait after refusals and useless watches, where an early retry costs the server a list."""
    away_cap_seconds: float = 2.0
    """Longest wait while the server gives no usable answer; changes are seen that much later after its
    return."""


class PageRequest(NamedTuple):
    """Page to request."""

    limit: int | None
    """Maximum number of objects; None for a list in one piece."""
    token: str | None
    most_bytes: int


class Recovery(NamedTuple):
    """Consequence of a failure."""

    wait_seconds: float
    """Seconds until the next request."""
    failure: ApiError | None
    """Error to report; None if it is a normal part of listing and watching."""


class Reflector:
    """State of a reflector: it lists while `version` is None, then watches from there."""

    def __init__(self, timing: WatchTiming) -> None:
        self.version: str | None = None
        """Version up to which the copy is complete."""
        self._timing = timing
        self._pages = PageSize()
        self._is_paged = True
        self._token: str | None = None
        self._opened_at: float | None = None
        """Time when the watch was opened, by the caller's clock; None without a watch."""
        self._brought_news = False
        base_seconds = timing.backoff_base_seconds
        # Two, so that a list that is needed after a long outage does not have to wait long.
        self._refused = Backoff(base_seconds, timing.backoff_cap_seconds)
        self._away = Backoff(base_seconds, timing.away_cap_seconds)

    # --- the list ---

    def list_all(self, *, is_paged: bool = True) -> None:
        """Begin with the first page, or with the whole list in one piece if the server forgets its pages."""
        self.version = self._token = self._opened_at = None
        self._is_paged = is_paged

    def start(self) -> None:
        """Begin like a new process."""
        self.list_all()
        self._reset_backoffs()

    @property
    def page(self) -> PageRequest:
        """Page to request next."""
        if self._is_paged:
            return PageRequest(self._pages.limit, self._token, self._pages.most_bytes)
        return PageRequest(None, None, MOST_WHOLE_BYTES)

    def page_arrived(self, items: int, size_bytes: int, token: str | None, version: str | None) -> bool:
        """Process a page of a list of this version; return whether it was the last."""
        self._pages.arrived(items, size_bytes)
        self._token = token or None
        if self._token is None:
            self._is_paged, self.version = True, version or "0"
        return self._token is None

    # --- the watch ---

    def opened(self, now: float) -> None:
        self._opened_at, self._brought_news = now, False

    def event_arrived(self, version: str | None) -> None:
        """Process an event of this version; None if it is unknown."""
        self._brought_news = True
        self.version = version or self.version

    def is_useful(self, now: float) -> bool:
        """Return whether the watch has lasted long enough, or brought events."""
        return self._brought_news or self._has_lived(now)

    def _has_lived(self, now: float) -> bool:
        return self._opened_at is not None and now - self._opened_at >= self._timing.useful_stream_seconds

    def ended(self, now: float) -> float:
        """Process the end of the watch; return the seconds to wait, so that a server that ends every watch at
        once is not flooded."""
        return self._after_watch(self.is_useful(now), None)

    def _after_watch(self, is_useful: bool, failure: ApiError | None) -> float:
        self._opened_at = None
        if not is_useful:
            return self._refused.next_seconds()
        self._reset_backoffs()
        return 0.0 if failure is None else self._after(failure)

    # --- failures ---

    def failed(self, error: ApiError, now: float) -> Recovery:
        """Process the failure of a request, which ends an open watch."""
        if self.version is None:
            return self._list_failed(error)
        failure = None if isinstance(error, Gone) else error
        # A watch gets 404 if its CRD was deleted; when that returns, its objects are new.
        is_lost = failure is None or isinstance(error, NotFound) or _version_is_ahead(error)
        is_open = self._opened_at is not None
        is_useful = self._has_lived(now) if is_lost else self.is_useful(now)
        if is_lost:
            self.list_all()
        return Recovery(self._after_watch(is_useful, failure) if is_open else self._after(failure), failure)

    def _list_failed(self, error: ApiError) -> Recovery:
        is_later_page = self._token is not None
        if is_later_page and isinstance(error, Gone):
            self.list_all(is_paged=False)
            return Recovery(0.0, None)
        if isinstance(error, PageTooLarge) and self._is_paged and self._pages.limit > 1:
            self._pages.too_large(error)
            return Recovery(0.0, None)
        if isinstance(error, TimedOut):
            self._pages.timed_out()
        if isinstance(error, Refused if is_later_page else PageTooLarge | TimedOut):
            self.list_all()
        return Recovery(self._after(error), error)

    def _after(self, failure: ApiError | None) -> float:
        if not isinstance(failure, Unavailable):
            return self._refused.next_seconds()
        asked_for = min(failure.retry_after_seconds or 0.0, self._timing.backoff_cap_seconds)
        return max(self._away.next_seconds(), asked_for)

    def _reset_backoffs(self) -> None:
        self._refused.reset()
        self._away.reset()


def _version_is_ahead(error: ApiError) -> bool:
    """Return whether the server is behind our resourceVersion (its storage was restored), so that only a list
    helps."""
    if any(cause.reason == "ResourceVersionTooLarge" for cause in error.causes):
        return True
    return "Too large resource version" in str(error)
