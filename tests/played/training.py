"""Training processes of a seed: steps of drawn length, in which all ranks of a world wait for each other.

Only what an agent sees of them is here: exit codes, steps, and whether a step is long in coming.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.facts.world import AgentWorld, Member
from crds.progress_record import EXIT_LEFT, GO_ON, GOES_ALONE, TAKES_PART, is_to_stay
from dlr.checkpoint.leaving import LOOK_SECONDS, next_move
from tests.played.schedule import Schedule

if TYPE_CHECKING:
    from tests.played.agent import Agent

KILLED, FAILED, BY_A_PEER, STOPPED = -9, 1, 2, -15


@dataclass
class Processes:
    """The processes of one agent in one round."""

    world: AgentWorld
    member: Member
    ranks: Mapping[int, int]
    """Global ranks by local ones."""
    agent: Agent
    exit_codes: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    """What an exception says, by local rank, of those that failed."""
    order: int = GO_ON
    """The words ORDER and SPEAKS."""
    speaks: int = 0
    leaves: bool = False
    has_saved: bool = False
    """They save, or have saved, the step after which all leave by vote."""
    step: int | None = None
    """The last step that they have ended."""
    stepped_at: float | None = None
    is_able: bool = False
    """They can live through the death of a peer, once they train."""
    lost: bool = False
    """They have left the round by themselves, for want of a peer."""
    has_stayed: bool = False
    """They have left the round by vote, and wait for the next."""

    @property
    def lives_on(self) -> bool:
        return self.is_able and self.step is not None and bool(self.alive())

    def leave(self) -> None:
        """Leave after a vote: end, or wait for the next round."""
        if self.lives_on and is_to_stay(self.order):
            self.has_stayed = True
            self.agent.wake()
        else:
            self.end(self.alive(), EXIT_LEFT)

    @property
    def all_exited(self) -> bool:
        return len(self.exit_codes) == len(self.ranks)

    def alive(self) -> list[int]:
        return [local for local in self.ranks if local not in self.exit_codes]

    def await_ends(self, *_: object) -> None:
        """Wait for none: what ends later is lost with the others."""

    def end(self, local_ranks: Collection[int], code: int) -> None:
        for local in local_ranks:
            self.exit_codes.setdefault(local, code)
        self.agent.wake()


@dataclass
class Lengths:
    """How long things take, in seconds; each is drawn between nothing and this."""

    step: float = 2.0
    start: float = 5.0
    save: float = 3.0


class Training:
    """The processes of all members of one round."""

    def __init__(
        self,
        schedule: Schedule,
        world: AgentWorld,
        first_step: int,
        last_step: int,
        lengths: Lengths,
        on_step: Callable[[Training], object],
        on_saved: Callable[[int], object],
    ) -> None:
        self._schedule, self._lengths = schedule, lengths
        self._on_step, self._on_saved = on_step, on_saved
        self.world = world
        self.step = first_step - 1
        """The last step that all have ended."""
        self.last_step = last_step
        self.parts: dict[Member, Processes] = {}
        self.hangs_at: Member | None = None
        """Whose process stands still, for ever; the others wait for it."""
        self.is_young = False
        """A process was stopped before its first step: until then none leaves by vote."""
        self._is_stepping = False
        self.is_split: Callable[[], bool] = lambda: False
        """Whether some hosts of the members do not reach each other, so that no step ends."""

    def join(self, part: Processes) -> None:
        """The processes of one member have been started; all train as soon as all are there."""
        self.parts[part.member] = part
        seconds = self._schedule.random.uniform(0.0, self._lengths.start)
        self._schedule.after(seconds, f"{part.member} is ready", self.go_on)

    @property
    def trains(self) -> bool:
        """Whether every rank of the world has a process that runs, so that a step can end."""
        parts = self.parts.values()
        return (
            self.hangs_at is None
            and len(self.parts) == len(self.world.members)
            and not any(part.exit_codes for part in parts)
        )

    def go_on(self) -> None:
        """Begin the next step, unless a process waits for its agent's word, or leaves."""
        if not self.trains or self._is_stepping or self.is_split():
            return
        now, moves = self._schedule.now, set[str]()
        for part in self.parts.values():
            move = next_move(part.order, part.speaks, -1 if part.step is None else part.step, now)
            moves.add(move)
            if move == "wait":
                self._schedule.at(max(-part.order / 1_000, now) + 0.001, "a hold runs out", self.go_on)
            elif move == "go alone":
                part.speaks = GOES_ALONE
            elif move in ("memory", "storage") and not part.leaves:
                part.leaves = True
                seconds = self._schedule.random.uniform(0.0, self._lengths.save)
                self._schedule.after(seconds, f"{part.member} has saved", lambda p=part: self._leave(p))
        if moves <= {"go on", "go alone"}:
            self._is_stepping = True
            seconds = self._schedule.random.uniform(0.1, self._lengths.step)
            self._schedule.after(seconds, f"round {self.world.round} ends a step", self._end_step)

    def look_soon(self) -> None:
        """The word ORDER of a process has changed: it sees that at its next look."""
        seconds = self._schedule.random.uniform(0.0, LOOK_SECONDS)
        self._schedule.after(seconds, f"round {self.world.round} looks", self.go_on)

    def _leave(self, part: Processes) -> None:
        """The processes of one member have saved their part; all wait for all before they end."""
        part.has_saved = True
        parts = self.parts.values()
        if all(each.has_saved and each.alive() for each in parts):
            self._on_saved(self.step)
            for each in parts:
                seconds = self._schedule.random.uniform(0.0, 0.3)
                self._schedule.after(seconds, f"{each.member} has left", each.leave)

    def _end_step(self) -> None:
        self._is_stepping = False
        if not self.trains or self.is_split():
            return
        self.step += 1
        for part in self.parts.values():
            part.step, part.stepped_at = self.step, self._schedule.now
            part.speaks = part.speaks or TAKES_PART
            part.agent.see_step(part)
        self._on_step(self)
        if self.step < self.last_step:
            self.go_on()
            return
        for part in self.parts.values():
            seconds = self._schedule.random.uniform(0.0, 0.5)
            self._schedule.after(seconds, f"{part.member} ends well", lambda p=part: p.end(p.alive(), 0))

    def time_out(self) -> None:
        """The collective of a rank that waits for the one that hangs is given up, where that still hangs."""
        waiting = [m for m, part in self.parts.items() if m != self.hangs_at and part.alive()]
        if waiting and not any(part.exit_codes for part in self.parts.values()):
            text = "RuntimeError: gloo/unbound_buffer.cc:81] Timed out waiting 5000ms for recv"
            self.fail(self._schedule.random.choice(waiting), FAILED, text)

    def fail(self, member: Member, code: int, message: str) -> None:
        """A process of a member ends; those of its peers notice, or wait for it."""
        part = self.parts[member]
        if not part.alive():
            return
        local = self._schedule.random.choice(part.alive())
        part.errors[local] = message
        part.end([local], code)
        self.lose(member)

    def lose(self, member: Member) -> None:
        """The peers of a process that is gone fail for want of it, or wait in C++."""
        for peer, part in self.parts.items():
            if peer == self.hangs_at:
                continue  # it is in no collective
            if (peer != member or len(part.ranks) > 1) and self._schedule.chance(0.5):
                seconds = self._schedule.random.uniform(0.0, 0.5)
                self._schedule.after(seconds, f"{peer} sees its peer's end", lambda p=part: self._follow(p))

    def _follow(self, part: Processes) -> None:
        if not self.is_over(part) and not part.has_stayed:
            for local in part.alive():
                part.errors[local] = "RuntimeError: gloo/pair.cc:547] Connection closed by peer [10.0.0.7]:5"
            if part.lives_on:
                part.lost = True
                part.agent.wake()
            else:
                part.end(part.alive(), BY_A_PEER)

    def is_over(self, part: Processes) -> bool:
        return self.step >= self.last_step or not part.alive()
