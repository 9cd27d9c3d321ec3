"""Long waits of the played processes, by a store whose answers take some time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dlr.replicas.patience import QUIET_SECONDS, Add, Broken, Late, LongWait, ReadWaiting, WaitAct, waiting

if TYPE_CHECKING:
    from tests.replicas.world import Process

PATIENCE_SECONDS = 10.0
EXCHANGE_SECONDS = 60.0
MARGIN_SECONDS = 2.0
"""Time within which the store has learned that a process waits, beside a slow store's."""


class PlayedWait:
    """A long wait, as the product's thread carries it out, with a store whose answers take some time."""

    def __init__(self, process: Process) -> None:
        assert process.exchange is not None
        self.process, self.world = process, process.world
        self.version, self.size = process.exchange.version, process.exchange.size
        patience = PATIENCE_SECONDS if process.at.member.trained else None
        self.wait = LongWait(process.seat, patience, EXCHANGE_SECONDS)
        self.queue: deque[WaitAct] = deque()
        self.groups = process.meeting.groups
        self.is_busy = self.is_over = self.has_ended = self.is_gone = self.is_counted = False
        self.wait, acts = self.wait.begin()
        self.put(acts)
        self.tick()

    def tick(self) -> None:
        seconds = self.wait.due - self.wait.waited

        def ticked() -> None:
            if not self.is_over:
                self.wait, acts = self.wait.after_tick(seconds)
                self.put(acts)
                self.tick()

        self.world.schedule.after(seconds, "tick", lambda: self.process.run(ticked))

    def end(self) -> None:
        self.is_over = True
        if not self.is_busy:
            self.next()

    def put(self, acts: Sequence[WaitAct]) -> None:
        self.queue.extend(acts)
        if not self.is_busy:
            self.next()

    def next(self) -> None:
        """Carry out the next act, which the store answers later."""
        self.is_busy = False
        while self.queue or (self.is_over and not self.has_ended):
            if not self.queue:
                self.has_ended = True
                self.queue.extend(self.wait.end())
            act = self.queue.popleft()
            if isinstance(act, Late):
                self.check_late(act.places)
                indices = [self.groups[place][0] for place in act.places]
                self.process.tell({"late": {"version": self.version, "groups": indices}})
            elif isinstance(act, Broken):
                self.process.tell({"broken": self.version})
            else:
                self.is_busy = True
                delay = self.world.pause(self.world.store_seconds)
                self.world.schedule.after(
                    delay, "store", partial(self.process.run, partial(self.answer, act))
                )
                return

    def answer(self, act: WaitAct) -> None:
        store = self.world.stores.get(self.version)
        if store is None or not self.process.agent.roster.is_newest(self.version):
            self.is_gone = True
            return  # its thread ends
        if isinstance(act, Add):
            answer: Any = store.get(act.key, 0) + act.amount
            store[act.key] = answer
        else:
            assert isinstance(act, ReadWaiting)
            answer = [store.get(waiting(place), 0) for place in range(self.size)]
        self.is_counted = self.is_counted or act == Add(waiting(self.wait.place), 1)
        self.wait, more = self.wait.after_answer(act, answer)
        if act == Add("teller", 1) and self.wait.is_teller:
            self.check_teller()
        self.queue.extend(more)
        self.next()

    def check_late(self, places: Sequence[int]) -> None:
        """Nobody is named who has waited for long enough to be seen."""
        now, rest = self.world.schedule.now, QUIET_SECONDS + MARGIN_SECONDS + 4 * self.world.store_seconds
        for place in places:
            for other in self.others():
                wait = other.long
                is_seen = wait is not None and wait.version == self.version and wait.is_counted
                if other.place == self.groups[place] and is_seen and now - other.waits_since > rest:
                    self.world.fail(f"(e) nobody who waits is named: {other.name} by {self.process.name}")

    def check_teller(self) -> None:
        for other in self.others():
            wait = other.long
            is_same = wait is not None and wait.version == self.version and not wait.is_gone
            if is_same and wait.wait.is_teller and wait.wait.patience_seconds is not None:
                self.world.fail(f"(e) one teller: {other.name} and {self.process.name}")

    def others(self) -> Iterator[Process]:
        return (each for each in self.world.processes() if each is not self.process)
