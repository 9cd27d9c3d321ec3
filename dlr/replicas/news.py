"""A process's view of the versions of the groups, from its agent, and its reports about them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from agent.replicas.facts import VersionGroups
from agent.survival.client import RoundOverError
from dlr.replicas.channel import Channel
from dlr.replicas.exchange import BrokenError, Exchange, OvertakenError
from dlr.replicas.group import OwnGroup
from dlr.replicas.patience import Absences, wait_for

logger = logging.getLogger(__name__)

BROKEN_SECONDS = 2.0
"""Time in which a newer version is expected after an exchange breaks."""


@dataclass(frozen=True)
class ReportLeftOut:
    """Report that the process is back, and that a version leaves its group out."""

    version: int


@dataclass(frozen=True)
class WaitForVersion:
    """Wait for the next version, for at most `seconds`."""

    seconds: float = inf


@dataclass(frozen=True)
class Awaiting:
    """A wait of one process for a version with its group. Pure."""

    newest: int
    """Least number of the version."""
    has_met: bool = False
    """Whether the process has taken part in an earlier version."""
    absences: Absences = field(default_factory=Absences)
    resume_at: float | None = None
    """Time at which a process whose group is left out requests to take part; None if it is not left out."""
    asked: int = -1
    """Newest version without its group that it has reported; a later one may leave it out again."""

    def after(
        self, membership: VersionGroups | None, clock: Callable[[], float]
    ) -> tuple[Awaiting, VersionGroups | ReportLeftOut | WaitForVersion]:
        """Return the wait after a look at the newest membership, and the next action; a membership ends it.

        A group that is often left out waits longer before its report. A process that has met no other group
        may still have been left out, of a version that it has never seen.

        Args:
            clock: returns the monotonic time, in seconds.
        """
        if membership is None or membership.version < self.newest:
            return self, WaitForVersion()
        if membership.place is not None:
            return self, membership
        if membership.version <= self.asked:
            return self, WaitForVersion()
        if self.resume_at is None:
            is_absent = self.has_met and membership.groups
            absences, seconds = self.absences.after(clock()) if is_absent else (self.absences, 0.0)
            return replace(self, absences=absences, resume_at=clock() + seconds).after(membership, clock)
        if (seconds := self.resume_at - clock()) > 0:
            return self, WaitForVersion(seconds)
        return replace(self, asked=membership.version), ReportLeftOut(membership.version)


class GroupVersions:
    """The versions of the groups, seen from one rank, in one round of its group.

    Args:
        is_round_over: returns whether the round is over, which ends all waits.
    """

    def __init__(self, channel: Channel, own: OwnGroup, is_round_over: Callable[[], bool]) -> None:
        self._channel = channel
        self._own = own
        self._is_round_over = is_round_over
        self._absences = Absences()
        self.changed = threading.Condition()
        """Notified of each new version, and of other events that may end a wait for other groups."""

    def follow(self) -> None:
        """Begin to take part."""
        self._channel.follow(self.notify, self._own.rank, self._own.size)

    def notify(self) -> None:
        """Wake all waits."""
        with self.changed:
            self.changed.notify_all()

    @property
    def newest(self) -> int:
        """Number of the newest version, whether this group takes part in it or not."""
        membership = self._channel.membership
        return 0 if membership is None else membership.version

    def is_overtaken(self, version: int) -> bool:
        """Whether a version is obsolete: there is a newer one, or the round is over."""
        return self._is_round_over() or self.newest > version

    def await_membership(self, newest: int, *, has_met: bool) -> VersionGroups:
        """Wait for a version of at least that number in which this group takes part.

        Args:
            has_met: whether these processes have taken part in an earlier version.

        Raises:
            RoundOverError: the round is over.
        """
        awaiting = Awaiting(newest, has_met, self._absences)
        while not self._is_round_over():
            seen = self._channel.membership
            awaiting, found = awaiting.after(seen, time.monotonic)
            self._absences = awaiting.absences
            match found:
                case VersionGroups():
                    return found
                case ReportLeftOut(version):
                    logger.info(
                        "waiting for a version of the groups later than %d, with this one in it", version
                    )
                    self._channel.left_out(version)
                case WaitForVersion(seconds):
                    if seconds < inf:
                        logger.warning("left out again: waiting %.0f s before this group takes part", seconds)
                    wait_for(self.changed, partial(self._has_news_since, seen), seconds=seconds)
        raise RoundOverError("the round is over, in which this group waits to take part")

    def _has_news_since(self, seen: VersionGroups | None) -> bool:
        return self._is_round_over() or self._channel.membership != seen

    def succeeds(self, exchange: Exchange, act: Callable[[], object]) -> bool:
        """Run an action with the other groups of a version, and return whether it succeeded.

        If not, there is a newer version, or one was requested.
        """
        try:
            if exchange.is_overtaken:
                raise OvertakenError
            act()
        except OvertakenError:
            return False
        except BrokenError as error:
            self._report_broken(exchange, error)
            return False
        return True

    def _report_broken(self, exchange: Exchange, error: BrokenError) -> None:
        """Request another version, with a delay, since a death breaks connections before it is reported."""
        with self.changed:
            self.changed.wait_for(lambda: exchange.is_overtaken, BROKEN_SECONDS)
        if not exchange.is_overtaken:
            logger.warning(
                "the groups' exchange is broken, and another version of it is waited for: %s", error
            )
            self._channel.broken(exchange.seat.version)
