"""What processes of the played groups meet in, where connections break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.replicas.world import Parameters, World


@dataclass
class Span:
    """Numbers of the ranks of a group, of which all get the lowest and the highest."""

    numbers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    callbacks: dict[int, Callable[[list[int], list[int]], None]] = field(default_factory=dict)


@dataclass
class Collective:
    """Something to which all groups of an exchange come."""

    what: object
    data: dict[int, Any] = field(default_factory=dict)
    waits: dict[int, Callable[[Any], None]] = field(default_factory=dict)


class Exchange:
    """Processes of one rank, of all groups of a version."""

    def __init__(self, world: World, version: int, size: int) -> None:
        self.world, self.version, self.size = world, version, size
        self.collectives: list[Collective] = []
        self.is_cut = False
        self.heal: Transfer | None = None

    def submit(self, number: int, place: int, what: object, data: Any, finish: Callable[[Any], None]) -> None:
        """Come to a collective; `finish` gets what all have given, by place, or None where it breaks."""
        while len(self.collectives) <= number:
            self.collectives.append(Collective(what))
        collective = self.collectives[number]
        if collective.what != what:
            self.world.fail(f"(d) all do the same: {what} meets {collective.what} in version {self.version}")
        collective.data[place], collective.waits[place] = data, finish
        if self.is_cut:
            self._later(place, collective, None)
        elif len(collective.data) == self.size:
            for other in range(self.size):
                self._later(other, collective, [collective.data[at] for at in range(self.size)])

    def _later(self, place: int, collective: Collective, result: Any) -> None:
        def finish() -> None:
            wait = collective.waits.pop(place, None)
            if wait is not None:
                wait(None if self.is_cut and self.world.schedule.chance(0.5) else result)

        self.world.schedule.after(self.world.pause(0.2), "collective", finish)

    def cut(self) -> None:
        """Break the connections."""
        if self.is_cut or self.size == 1:
            return
        self.is_cut = True
        for collective in self.collectives:
            for place in [*collective.waits]:
                self._later(place, collective, None)
        if self.heal is not None:
            self.heal.cut()


class Transfer:
    """A state on its way from the first of some places to the others."""

    def __init__(self, exchange: Exchange, places: Sequence[int]) -> None:
        self.exchange, self.places = exchange, places
        self.begun: set[int] = set()
        self.sent: Parameters | None = None
        self.is_complete = False
        """Whether the sender has sent all else, too."""
        self.is_cut = False
        self.ended: dict[int, bool] = {}
        """Whether a side has ended well, by place."""
        self.waits: dict[int, Callable[[], None]] = {}

    def begin(self, place: int, parameters: Parameters) -> None:
        if place == self.places[0]:
            self.sent = parameters
        self.begun.add(place)
        self._deliver()

    def complete(self) -> None:
        self.is_complete = True
        self._deliver()

    def _deliver(self) -> None:
        if self.is_complete and len(self.begun) == len(self.places):
            for place in self.places:
                self._later(place, True)

    def cut(self) -> None:
        if not self.is_cut:
            self.is_cut = True
            for place in self.begun:
                self._later(place, False)

    def _later(self, place: int, ok: bool) -> None:
        def end() -> None:
            self.ended.setdefault(place, ok)
            if (wait := self.waits.pop(place, None)) is not None:
                wait()

        world = self.exchange.world
        world.schedule.after(world.pause(0.4), "state", end)
