"""Transfer of one state from the leader to the groups behind, on the side of either."""

from __future__ import annotations

import threading
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch

from dlr.replicas.agreement import GroupAgreement
from dlr.replicas.exchange import BrokenError, Exchange
from dlr.replicas.transfer import Incoming, Outgoing, Transfer


class Healing:
    """This process's part in the transfer of one state, during a step or before one.

    Args:
        changed: notified at the end.
    """

    def __init__(
        self,
        agreement: GroupAgreement,
        exchange: Exchange,
        state: MutableMapping[str, Any],
        device: torch.device,
        changed: threading.Condition,
    ) -> None:
        self.is_sender = exchange.seat.place == agreement.leader
        self._places: Sequence[int] = (agreement.leader, *sorted(agreement.behind))
        self._exchange = exchange
        self._state = state
        self._device = device
        self._changed = changed
        self._transfer: Transfer | None = None
        self._incoming: Incoming | None = None
        self._outgoing: Outgoing | None = None

    def begin(self) -> None:
        """Begin to send or to receive the present parameters."""
        exchange, places, changed = self._exchange, self._places, self._changed

        def notify() -> None:
            with changed:
                changed.notify_all()

        if self.is_sender:
            self._outgoing = Outgoing(self._state, lambda: exchange.is_overtaken, changed, self._device)
            act = self._outgoing.send
        else:
            self._incoming = Incoming(self._device)
            act = self._incoming.receive
        self._transfer = Transfer(lambda: exchange.connect(places), act, notify, self._device)
        self._transfer.start()

    def wait(self) -> None:
        """Wait for the end of a transfer under way; the sender's present other state is sent, too.

        Raises:
            OvertakenError, BrokenError: the state does not arrive.
        """
        transfer = self._transfer
        if transfer is None:
            return
        if self._outgoing is not None:
            self._outgoing.complete()
        self._exchange.wait_until(lambda: transfer.is_done)
        if transfer.error is not None:
            raise BrokenError(f"the state did not arrive: {transfer.error}") from transfer.error

    def load(self) -> None:
        """Load the received state, if this process is behind."""
        if self._incoming is not None:
            self._incoming.load(self._state)
