"""Size of the pages of a list: as many objects as arrive in time and parse quickly."""

from __future__ import annotations

from controller.api.calls import MOST_BYTES
from controller.errors import PageTooLarge, TooLarge

LIST_PAGE_SIZE = 250
PAGE_BYTES = 1_000_000
"""Target size of a page; parsing it blocks the event loop for a few hundredths of a second."""
MOST_PAGE_BYTES = 2_500_000
"""Maximum size of a page of several objects; a larger one is dropped, and requested in smaller pieces."""
MOST_WHOLE_BYTES = 64_000_000
"""Maximum size of a list in one piece, which is requested if the server has forgotten its pages; and of all
pages of a list outside the cache."""
MOST_LISTED_UNITS = 2_000_000
"""Maximum units (`controller/shape.py`) of a list outside the cache."""
_STEP = 8


class PageSize:
    """Limit for the next page of one collection."""

    def __init__(self) -> None:
        self.limit = LIST_PAGE_SIZE

    @property
    def most_bytes(self) -> int:
        """Maximum size of the next page; a single object may have any size allowed."""
        return MOST_PAGE_BYTES if self.limit > 1 else MOST_BYTES

    def arrived(self, items: int, size_bytes: int) -> None:
        """Adjust the limit to the size of a page."""
        fitting = PAGE_BYTES * items // max(size_bytes, 1) if items else LIST_PAGE_SIZE
        self.limit = max(1, min(fitting, self.limit * 2, LIST_PAGE_SIZE))

    def too_large(self, error: TooLarge) -> None:
        """Adjust the limit after a page of `limit` objects was too large."""
        fitting = self.limit // _STEP
        if isinstance(error, PageTooLarge):
            fitting = min(self.limit - 1, self.limit * error.wanted_bytes // error.size_bytes)
        self.limit = max(1, fitting)

    def timed_out(self) -> None:
        """Adjust the limit after a page did not arrive in time."""
        self.limit = max(1, self.limit // _STEP)
