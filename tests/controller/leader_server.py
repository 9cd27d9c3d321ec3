"""The API server of the played elections: a Lease, the statuses of Pods, and times at which it is away."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from enum import Enum

from controller.errors import AlreadyExists, Conflict, NotFound
from tests.controller.lease_api import LeaseApi
from tests.played.network import request
from tests.played.schedule import Timer


class Outage(Enum):
    REFUSES = "refuses"
    HANGS = "hangs"
    HOLDS = "holds"
    """Requests wait, and are answered when it is back."""


class Server:
    """One API server, asked by the processes of a `Game`."""

    def __init__(self, game) -> None:
        self.game = game
        self.leases = LeaseApi()
        self.pods: dict[str, dict] = {}
        self.outage: Outage | None = None
        self._held: list[tuple[str, Callable[[], None]]] = []
        self._return = Timer(0.0, "", lambda: None)
        self.written_at, self.holder = -math.inf, ""

    @property
    def held_names(self) -> list[str]:
        """The names of the requests that wait."""
        return [name for name, _ in self._held]

    def go_away(self, outage: Outage, seconds: float) -> None:
        self.outage = outage
        self._return.cancel()
        self._return = self.game.schedule.after(seconds, "the server is back", self.come_back)

    def come_back(self) -> None:
        self.outage = None
        self._return.cancel()
        held, self._held = self._held, []
        for name, send in held:
            self.game.schedule.soon(name, send)

    def ask(self, name: str, act, answer) -> None:
        """Send a request; the answer is what it found, or an error."""

        def arrive():
            try:
                return act()
            except (NotFound, Conflict, AlreadyExists) as error:
                return error

        def send():
            request(self.game.schedule, self.game.faults, name, lambda: self._arrive(arrive), answer)

        if self.outage is None:
            send()
        elif self.outage is Outage.HOLDS:
            self._held.append((name, send))
        elif self.outage is Outage.REFUSES:
            self.game.schedule.after(0.01, f"{name}: refused", lambda: answer(ConnectionError("refused")))

    def _arrive(self, act):
        """Nothing arrives at a server that is away, though it was sent before."""
        return act() if self.outage is None else ConnectionError("away")

    def write(self, write, lease):
        """Write the Lease, and judge whether it may change hands so."""
        answer = write(copy.deepcopy(lease))
        now, holder = self.game.schedule.now, answer["spec"]["holderIdentity"]
        if holder and self.holder not in ("", holder):
            self.game.changes_hands(self.holder, holder, now - self.written_at)
        self.holder, self.written_at = holder, now
        return answer
