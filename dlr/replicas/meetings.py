"""Meetings of a process with the other groups, from one version to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor

from agent.replicas.facts import VersionGroups
from dlr.replicas.agreement import GroupAgreement, MeetingGroup, agree, agree_on_round
from dlr.replicas.channel import Channel
from dlr.replicas.exchange import Exchange, Seat
from dlr.replicas.gradients import local
from dlr.replicas.group import OwnGroup
from dlr.replicas.healing import Healing
from dlr.replicas.news import GroupVersions
from dlr.replicas.patience import Patience
from dlr.replicas.protocol import Met, NotMet, Quorum, ReplicaState

EXCHANGE_SECONDS = 60.0
"""Time limit of an exchange of gradients, or of a state, to which all groups have come, besides the time for
its bytes."""
SLOWEST_BYTES_PER_SECOND = 16 << 20
"""Slowest rate, in bytes of parameters per second. Their state has up to eight times as many, so that is a
network of one gigabit per second."""


def seconds_for(parameters: Iterable[Tensor]) -> float:
    """Return the time that a transfer of the parameters' state may take, by its size."""
    return sum(local(each.detach()).nbytes for each in parameters) / SLOWEST_BYTES_PER_SECOND


class Meetings:
    """The meetings in one round of this process's group, and transfers of states between groups.

    Args:
        exchange_seconds: time limit of an exchange to which all groups have come.
        patience_seconds: returns how long this process may wait for others now; None for no limit.
        is_round_over: returns whether the round is over, which ends all waits.
    """

    def __init__(
        self,
        own: OwnGroup,
        channel: Channel,
        device: torch.device,
        exchange_seconds: float,
        patience_seconds: Callable[[], float | None],
        is_round_over: Callable[[], bool],
    ) -> None:
        self.channel = channel
        self._own = own
        self._device = device
        self._exchange_seconds = exchange_seconds
        self._patience_seconds = patience_seconds
        self.news = GroupVersions(channel, own, is_round_over)
        self._membership: VersionGroups | None = None
        self._exchange: Exchange | None = None
        self._healing: Healing | None = None
        """Transfer of a state from or to this process, if one is under way."""

    @property
    def version(self) -> int:
        """The version in which this process meets others, or has met them."""
        assert self._membership is not None
        return self._membership.version

    @property
    def exchange(self) -> Exchange:
        """The exchange of that version."""
        assert self._exchange is not None
        return self._exchange

    def join(self, newest: int, at: ReplicaState) -> Met | NotMet:
        """Connect to the other groups of a version, at least `newest`, and agree with them.

        Raises:
            RoundOverError: the round is over.
        """
        membership = self.news.await_membership(newest, has_met=at.quorum is not None)
        number = membership.version
        (lowest,), (highest,) = self._own.span(number)
        if lowest < highest:
            return NotMet(highest)
        self.disconnect()
        assert membership.place is not None
        self._membership, self._healing = membership, None
        self._exchange = Exchange(
            Seat(number, self._own.rank, membership.place, len(membership.groups)),
            lambda: self.channel.open_store(number),
            self._device,
            lambda: self.news.is_overtaken(number),
            self.news.changed,
            Patience(
                self._patience_seconds,
                self._exchange_seconds,
                lambda places: self.channel.late(number, membership.indices(places)),
                lambda: self.channel.broken(number),
            ),
        )
        self._exchange.start()
        return self.agree(at)

    def agree(self, at: ReplicaState) -> Met | NotMet:
        """Agree with the other groups of the present version."""
        membership, exchange = self._membership, self.exchange
        assert membership is not None
        met: list[MeetingGroup] = []
        mine = at.as_member(membership.version)
        quorum, agreed = None, [-1] * 5
        if self.succeeds(lambda: met.extend(exchange.meet(mine))):
            rule = agree if at.sync_every is None else agree_on_round
            quorum = Quorum(membership, rule(met))
            agreed = quorum.agreement.to_numbers()
        lowest, highest = self._own.span(*agreed)
        return Met(quorum) if quorum is not None and lowest == highest else NotMet(membership.version + 1)

    def succeeds(self, act: Callable[[], object]) -> bool:
        """Run an action with the other groups of the version, and return whether it succeeded."""
        return self.news.succeeds(self.exchange, act)

    def disconnect(self) -> None:
        """Close the exchange, if there is one, so that the others notice at once that this process left."""
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def begin_heal(self, agreement: GroupAgreement, state: MutableMapping[str, Any]) -> None:
        """Begin to send a state, or to receive it."""
        self._healing = Healing(agreement, self.exchange, state, self._device, self.news.changed)
        self._healing.begin()

    def wait_for_heal(self) -> None:
        """Wait for the end of a transfer, if one is under way.

        Raises:
            OvertakenError, BrokenError: the state does not arrive.
        """
        if self._healing is not None:
            self._healing.wait()

    def end_heal(self) -> None:
        """Load the received state, if this group is behind."""
        if self._healing is not None:
            self._healing.load()
            self._healing = None
