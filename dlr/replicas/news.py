"""What a process learns from its agent of the groups that take part, and what it tells the agent of them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from agent.replicas.client import Membership
from dlr import progress
from dlr.replicas.channel import Channel
from dlr.replicas.exchange import BrokenError, Exchange, OvertakenError
from dlr.replicas.group import OwnGroup
from dlr.replicas.patience import BUSY_SECONDS, Absences, wait_for

logger = logging.getLogger(__name__)

BROKEN_SECONDS = 2.0
"""Time in which a newer version is expected when an exchange breaks."""


class News:
    """The versions of the groups, as one rank of a group sees them."""

    def __init__(self, channel: Channel, own: OwnGroup) -> None:
        self._channel = channel
        self._own = own
        self._absences = Absences()
        self.changed = threading.Condition()
        """Notified of each new version, and of whatever else may end a wait for other groups."""

    def follow(self) -> None:
        """Begin to take part."""
        self._channel.follow(self.notify, self._own.rank, self._own.size)

    def notify(self) -> None:
        """Wake whoever waits."""
        with self.changed:
            self.changed.notify_all()

    @property
    def newest(self) -> int:
        """The number of the newest version, whether this group takes part in it or not."""
        membership = self._channel.membership
        return 0 if membership is None else membership.version

    def await_membership(self, newest: int, *, has_met: bool) -> Membership:
        """Wait for a version of at least that number in which this group takes part, alike on all ranks.

        Args:
            has_met: whether these processes have taken part in an earlier version.
        """
        while True:
            found = self._await_own(newest, has_met=has_met)
            alike = self._own.is_alike([found.version])
            _, (newest,) = self._own.all(True, found.version)
            if alike:
                return found

    def _await_own(self, newest: int, *, has_met: bool) -> Membership:
        def there() -> Membership | None:
            membership = self._channel.membership
            return membership if membership is not None and membership.version >= newest else None

        def own() -> Membership | None:
            membership = there()
            return membership if membership is not None and membership.place is not None else None

        found = wait_for(self.changed, there, contextlib.nullcontext)
        if found.place is not None:
            return found
        if has_met and (returned := self._pause(own, found)) is not None:
            return returned
        logger.info("waiting for a version of the groups later than %d, with this one in it", found.version)
        return wait_for(self.changed, own, contextlib.nullcontext)

    def _pause(self, own: Callable[[], Membership | None], seen: Membership) -> Membership | None:
        """Tell the agent that this process is back and sees its group left out; later, if that happens often.

        Return a version with the group that has come meanwhile.
        """
        seconds = self._absences.pause_seconds(time.monotonic()) if seen.groups else 0.0
        if seconds:
            logger.warning("left out again, so this group waits for %.0f s before it takes part", seconds)
            with progress.busy(BUSY_SECONDS), self.changed:
                if (found := self.changed.wait_for(own, seconds)) is not None:
                    return found
        self._channel.left_out(max(self.newest, seen.version))
        return None

    def succeeds(self, exchange: Exchange, act: Callable[[], object]) -> bool:
        """Do something in a version with the other groups, and return whether it is done.

        If not, there is a newer version, or another one was asked for.
        """
        try:
            if exchange.is_overtaken:
                raise OvertakenError
            act()
        except OvertakenError:
            return False
        except BrokenError as error:
            self._tell_broken(exchange, error)
            return False
        return True

    def _tell_broken(self, exchange: Exchange, error: BrokenError) -> None:
        """Ask for another version; not at once, since a death breaks connections before it is known."""
        with self.changed:
            self.changed.wait_for(lambda: exchange.is_overtaken, BROKEN_SECONDS)
        if not exchange.is_overtaken:
            logger.warning(
                "the groups' exchange is broken, and another version of it is waited for: %s", error
            )
            self._channel.broken(exchange.seat.version)
