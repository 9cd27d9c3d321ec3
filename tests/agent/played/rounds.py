"""Rounds of agents with false training processes, whose votes are played by the product's own machines.

The agents have `Ballot` and `decide`, the processes `next_move`. What is false is the glue between: sockets, mapped
records and polls. Each agent may stand still wherever a real one could be stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from agent.supervision.ballot import Ballot, Traffic
from agent.supervision.leaving import (
    HURRY_GRACE_SECONDS,
    Graces,
    LeaveVote,
    StopLate,
    VoteOutcome,
    WaitForVote,
    decide,
)
from agent.supervision.vote import (
    DECISION_SECONDS,
    HOLD_SECONDS,
    SETTLE_SECONDS,
    SLACK_SECONDS,
    LocalProcesses,
    Message,
    MessageKind,
    VoteResult,
)
from crds.checkpoint_files import KeptIn
from crds.progress_record import EXIT_LEFT, GO_ON, GOES_ALONE, TAKES_PART, is_to_stay
from dlr.checkpoint.leaving import LOOK_SECONDS, next_move
from tests.played.network import Faults
from tests.played.schedule import Schedule
from tests.played.voting import PlayedBallot, Turn

POLL_SECONDS = 0.001
"""A poll lasts that much longer, as in `Votes`."""
KILLED = -9
ENDLESS = 3_000
"""A step that no round comes to."""


@dataclass(frozen=True)
class Setting:
    """What a round is like."""

    agents: int
    local: int
    stride: int
    """Difference of the numbers of two steps, one after the other."""
    step_seconds: float
    steps: int
    """The step before which training has come to its end."""
    in_lockstep: bool
    """In each step all wait for all, and so they do when they save."""
    save_seconds: float
    graces: Graces
    faults: Faults
    stall: float = 0.0
    """Probability that an agent or a process stands still between two things that it does."""
    deaths: int = 0
    failures: int = 0
    mute: float = 0.0
    """Probability that a process takes part in no vote."""
    late_join: float = 0.0
    """Probability that an agent connects to rank 0's late."""

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong, and nobody is late."""
        wrong = self.stall or self.deaths or self.failures or self.mute or self.late_join or self.faults.cut
        return not wrong and self.steps == ENDLESS


def draw_setting(random: Random) -> Setting:
    """Draw a round; in one of three nothing goes wrong."""
    agents = random.choice((1, 2, 2, 2, 3, 3, 4, 5))
    local = random.choice((1, 1, 2))
    stride = random.choice((1, 1, 3))
    step_seconds = random.choice((0.001, 0.01, 0.3, 4.0))
    delay_seconds = min(step_seconds * random.choice((0.02, 0.3, 2.0)), 0.5)
    in_lockstep = random.random() < 0.5
    save_seconds = random.choice((0.01, 1.0, 8.0))
    if random.random() < 0.3:
        graces, faults = Graces(60.0, 2.0), Faults(delay_seconds)
        return Setting(
            agents, local, stride, step_seconds, ENDLESS, in_lockstep, save_seconds, graces, faults
        )
    return Setting(
        agents,
        local,
        stride,
        step_seconds,
        random.choice((3, 10)),
        in_lockstep,
        save_seconds,
        Graces(random.choice((4.0, 12.0, 60.0)), 2.0),
        Faults(delay_seconds, cut=random.choice((0.0, 0.0, 0.03))),
        stall=random.choice((0.0, 0.0, 0.02)),
        deaths=random.choice((0, 0, 1, 2)),
        failures=random.choice((0, 0, 1)),
        mute=random.choice((0.0, 0.0, 0.1)),
        late_join=random.choice((0.0, 0.0, 0.3)),
    )


LEAVING = (VoteOutcome.LEFT, VoteOutcome.STAYED)


class Process:
    """A training process: its words, and where it is."""

    def __init__(self, round_: Round, agent: Agent) -> None:
        random = round_.schedule.random
        self._round, self._schedule, self.agent = round_, round_.schedule, agent
        self.order = GO_ON
        self.speaks = 0 if random.random() < round_.setting.mute else TAKES_PART
        self.keeps_in = KeptIn.STORAGE if random.random() < 0.1 else KeptIn.MEMORY
        self.boundary = -1
        """The word as others see it."""
        self.begun = self.ended = -1
        self.left_after: int | None = None
        self.tier: str | None = None
        self.exit_code: int | None = None
        self.has_stayed = False
        """It has left, and lives on."""
        self.waits = False
        """It is held, and looks at the order now and then."""
        self._held_by = GO_ON
        """The order by which it is held."""
        self._held_since = self._stalled_seconds = 0.0

    def begin(self) -> None:
        """Begin the next step, or come to the end of the training."""
        if self.exit_code is not None:
            return
        if self.begun + 1 >= self._round.setting.steps:
            self.exit(0)
            return
        self.begun += self._round.setting.stride
        self._round.enter(self)

    def finish(self) -> None:
        """End a step. The word BOUNDARY may be on its way to memory when ORDER is read."""
        if self.exit_code is not None:
            return
        step = self.ended = self.begun
        if self._schedule.chance(0.5):
            self.boundary = step
        elif self.speaks:
            seconds = self._schedule.random.random() * SETTLE_SECONDS * 0.9
            self._schedule.after(seconds, "a word is seen", lambda: self._show(step))
        if self.speaks:
            self._look()
        else:
            self.begin()

    def leave(self) -> None:
        """End, or live on, now that the step is saved."""
        if is_to_stay(self.order) and self.exit_code is None:
            self.has_stayed = True
            self.agent.wake()
        else:
            self.exit(EXIT_LEFT)

    def exit(self, code: int) -> None:
        if self.exit_code is None:
            self.exit_code, self.waits = code, False
            self.agent.wake()

    def set_order(self, order: int) -> None:
        """Change the word ORDER; a process that waits sees that at its next look."""
        self.order = order
        if self.waits:
            self._schedule.after(self._look_seconds(), "a process looks", self._look_again)

    def _show(self, step: int) -> None:
        self.boundary = max(self.boundary, step)

    def _look(self) -> None:
        now = self._schedule.now
        move = next_move(self.order, self.speaks, self.ended, now)
        if move == "wait":
            if not self.waits or self._held_by != self.order:
                self.waits, self._held_by = True, self.order
                self._held_since, self._stalled_seconds = now, 0.0
                until = -self.order / 1_000 + self._look_seconds()
                self._schedule.at(until, "a hold runs out", self._look_again)
            return
        if self.waits:
            self.waits = False
            self._check_hold(now - self._held_since)
        if seconds := self._round.stall_seconds():
            self._schedule.after(seconds, "a process goes on", lambda: self._do(move))
        else:
            self._do(move)

    def _do(self, move: str) -> None:
        if self.exit_code is not None:
            return
        if move == "go alone":
            self.speaks = GOES_ALONE
        if move == "memory" or move == "storage":
            self.left_after, self.tier = self.ended, move
            self._round.save(self)
        else:
            self.begin()

    def _check_hold(self, seconds: float) -> None:
        setting = self._round.setting
        if seconds > HOLD_SECONDS + SLACK_SECONDS + 2 * LOOK_SECONDS + self._stalled_seconds:
            self._round.wrong.append(f"held: a process waited {seconds:.3f} s")
        silent = [agent.rank for agent in self._round.agents if agent.died_silently]
        limit = 0.0 if not silent else HOLD_SECONDS if 0 in silent else DECISION_SECONDS
        if not setting.stall and seconds > limit + 5 * setting.faults.delay_seconds + 0.02:
            self._round.wrong.append(f"brief: a process waited {seconds:.3f} s although all can tell")

    def _look_again(self) -> None:
        if self.waits:
            self._look()

    def _look_seconds(self) -> float:
        seconds = self._round.stall_seconds()
        self._stalled_seconds += seconds
        return self._schedule.random.random() * LOOK_SECONDS + seconds


class Agent:
    """An agent as `Votes` and the elastic agent have it: it trains, leaves, or is done."""

    def __init__(self, round_: Round, rank: int) -> None:
        self._round, self._schedule, self.rank = round_, round_.schedule, rank
        self.stay = self._schedule.chance(0.4)
        """Its processes live on where they leave by vote."""
        self.processes = [Process(round_, self) for _ in range(round_.setting.local)]
        self.votes = PlayedBallot(
            self._schedule, round_.setting.agents, rank, self.wake, self._read, self._set_order
        )
        self.has_begun = False
        self.mode: Literal["train", "leave", "done"] = "train"
        self.outcome: VoteOutcome | None = None
        self.is_gone = self.died_silently = False
        self.peers_are_dead = False
        self.wish: KeptIn | None = None
        """What this agent has asked for."""
        self.wish_in_time: KeptIn = KeptIn.MEMORY
        """What it had told its ballot when that answered last."""
        self.answer = Message(MessageKind.CANNOT)
        """Its last answer to a vote."""
        self.ended_at: float | None = None
        """When it took part in nothing more, or died."""
        self.has_left = False
        """It has said that its processes have left."""
        self._new_wish: KeptIn | None = None
        self._told = KeptIn.MEMORY
        self._begun_at = 0.0
        self._stalled_seconds = 0.0
        """Time that it has stood still since its leave began."""
        self._is_pending = self._is_busy = self._is_woken = False
        self._wakes_at = 0.0

    # What happens to it.

    def begin(self) -> None:
        """Open its ballot, with a connection to rank 0's agent."""
        if self.is_gone or self.mode == "done":
            return
        self.has_begun = True
        if self.rank:
            self._round.agents[0].votes.take(self.votes, self._round.setting.faults)

    @property
    def ballot(self) -> Ballot | None:
        """Its ballot, once that is open."""
        return self.votes.ballot if self.has_begun else None

    def want(self, tier: KeptIn) -> None:
        """Want to leave, as by a signal or for the next world."""
        self._new_wish = tier
        self.wake()

    def learn_of_death(self) -> None:
        """Hear from the controller that a failure has ended the round."""
        self.peers_are_dead = True
        self.wake()

    def die(self, *, silently: bool) -> None:
        """End at once, with the processes. If it is silent, nobody sees the connections break."""
        if self.is_gone:
            return
        self.is_gone, self.died_silently = True, silently
        self.ended_at = self.ended_at or self._schedule.now
        for process in self.processes:
            process.exit(KILLED)
        self.votes.is_open = False
        if not silently:
            self.votes.hang_up()
        self._round.break_(20.0 if silently else 0.0)

    def wake(self) -> None:
        """Look soon."""
        if self._is_busy:
            self._is_woken = True
        elif not self._is_pending and not self.is_gone:
            self._is_pending = True
            self._schedule.soon("an agent looks", self._begin_turn)

    # What it does.

    def _begin_turn(self) -> None:
        self._is_pending, self._is_busy = False, True
        self._resume(self._turn())

    def _resume(self, turn: Turn) -> None:
        for _ in turn:
            if self.is_gone:
                return
            if seconds := self._round.stall_seconds():
                self._stalled_seconds += seconds
                self._schedule.after(seconds, "an agent goes on", lambda: self._resume(turn))
                return
        self._is_busy = False
        if self._is_woken:
            self._is_woken = False
            self.wake()

    def _turn(self) -> Turn:
        if self.mode == "done":
            return
        if self._new_wish is not None:
            yield from self._ask(self._new_wish)
        elif self.mode == "train":
            codes = self._exit_codes()
            if self.peers_are_dead or any(codes.values()) or len(codes) == len(self.processes):
                yield from self._end(0.0)
                return
        yield from self._look()
        if self.ballot is None:
            return
        if self.mode == "train" and self.ballot.is_open:
            self._begin_to_leave()
        if self.mode == "leave":
            yield from self._decide()
        elif self.ballot.wake_at is not None:
            self._wake_at(self.ballot.wake_at)

    def _ask(self, tier: KeptIn) -> Turn:
        self._new_wish = None
        self._begin_to_leave()
        self.wish = max(self.wish or tier, tier)
        if self.ballot is None or not self._read().take_part:
            yield from self._finish(VoteOutcome.OFF)
            return
        yield from self._look()
        self._told = max(self._told, tier)
        yield from self.votes.ask(tier)

    def _begin_to_leave(self) -> None:
        self.mode, self._begun_at, self._stalled_seconds = "leave", self._schedule.now, 0.0

    def _look(self) -> Turn:
        if self.ballot is None or self.mode == "done":
            return
        yield from self.votes.look(self._note)
        if self.ballot.agreed is not None:
            self._round.agreed.add(self.ballot.agreed)

    def _note(self, traffic: Traffic) -> None:
        for _, message in traffic:
            if message is not None and message.kind is MessageKind.ENDED:
                self.answer, self.wish_in_time = message, self._told
            elif message is not None and message.kind is MessageKind.LEAVE:
                self.wish_in_time = self._told
                self._round.check_counted(message)

    def _set_order(self, order: int) -> Turn:
        for process in self.processes:
            process.set_order(order)
            yield

    def _decide(self) -> Turn:
        ended = [process.boundary for process in self.processes]
        vote = self.votes.vote(
            self._begun_at,
            self._exit_codes(),
            ended,
            wish=self.wish is not None,
            peers_are_dead=self.peers_are_dead,
            living=[rank for rank, it in enumerate(self.processes) if it.has_stayed and it.exit_code is None],
        )
        decision = decide(vote, self._round.setting.graces)
        if isinstance(decision, WaitForVote):
            self._wake_at(self._schedule.now + decision.seconds)
            return
        yield
        if isinstance(decision, StopLate):
            self._check_time(decision.grace_seconds)
            self.outcome = VoteOutcome.STOPPED
            yield from self._end(decision.grace_seconds)
            return
        self._check_time(0.0)
        if decision in LEAVING:
            self._check_left(vote)
            self.has_left = True
            yield from self.votes.note_left()
        yield from self._finish(decision)

    def _finish(self, outcome: VoteOutcome) -> Turn:
        if outcome is VoteOutcome.OFF and self.wish is None:
            self.mode = "train"
            self.wake()
            return
        self.outcome = outcome
        yield from self._end(self._round.setting.graces.failure_seconds)

    def _end(self, grace_seconds: float) -> Turn:
        """Take part in nothing more, and end the processes that are left."""
        self.mode, self.ended_at = "done", self._schedule.now
        if any(self._exit_codes().values()) and self.outcome not in LEAVING:
            self._round.break_()
        yield from self.votes.close()
        for process in self.processes:
            seconds = self._schedule.random.random() * grace_seconds
            self._schedule.after(
                seconds, "a process is stopped", lambda process=process: process.exit(KILLED)
            )

    def _wake_at(self, due: float) -> None:
        due += POLL_SECONDS
        if not self._schedule.now < self._wakes_at <= due:
            self._wakes_at = due
            self._schedule.at(due, "an agent's time comes", self.wake)

    # What it sees.

    def _read(self) -> LocalProcesses:
        processes = self.processes
        return LocalProcesses(
            not any(process.exit_code is not None for process in processes),
            all(process.speaks == TAKES_PART for process in processes),
            tuple(process.boundary for process in processes),
            max(process.keeps_in for process in processes),
            self.stay,
        )

    def _exit_codes(self) -> dict[int, int]:
        codes = [(local, process.exit_code) for local, process in enumerate(self.processes)]
        return {local: code for local, code in codes if code is not None}

    # What must hold.

    def _check_time(self, grace_seconds: float) -> None:
        seconds = self._schedule.now - self._begun_at + grace_seconds
        stop_seconds = self._round.setting.graces.stop_seconds
        limit = stop_seconds if self.wish is not None else max(stop_seconds, HOLD_SECONDS)
        if seconds > limit + self._stalled_seconds + 10 * POLL_SECONDS:
            self._round.wrong.append(f"grace: agent {self.rank} took {seconds:.3f} s of {limit} s")
        if self.ballot is not None and self.ballot.agreed is not None:
            self._check_lost(self.ballot.lost_at)

    def _check_lost(self, lost_at: float | None) -> None:
        now = self._schedule.now
        if lost_at is not None:
            if now - lost_at > HURRY_GRACE_SECONDS + self._stalled_seconds + 10 * POLL_SECONDS:
                self._round.wrong.append(f"lost: agent {self.rank} waits on for who is lost")
            return
        setting, chair = self._round.setting, self._round.agents[0]
        before = now - 3 * setting.faults.delay_seconds - 10 * POLL_SECONDS
        for other in self._round.agents:
            deserted = other.ended_at is not None and not (other.has_left or other.died_silently)
            chair_stayed = chair.ended_at is None or other.ended_at == chair.ended_at
            if deserted and other.ended_at < before and chair_stayed and not setting.stall:
                self._round.wrong.append(f"lost: agent {self.rank} has not heard that {other.rank} is lost")

    def _check_left(self, vote: LeaveVote) -> None:
        for process in self.processes:
            left = vote.agreed is not None and process.left_after == self._round.last_step(vote.agreed.step)
            gone = process.exit_code == EXIT_LEFT or process.has_stayed
            if process.exit_code != 0 and not (left and gone):
                self._round.wrong.append(f"left: agent {self.rank} says so, and a process has not")


class Round:
    """A round, with what has gone wrong in it."""

    def __init__(self, schedule: Schedule, setting: Setting) -> None:
        self.schedule, self.setting = schedule, setting
        self.wrong: list[str] = []
        self.agreed: set[VoteResult] = set()
        """What agents have found to be agreed."""
        self._in_step: list[Process] = []
        """Processes that wait for others to begin the step that they are in."""
        self._saving: list[Process] = []
        self._is_broken = False
        self.agents = [Agent(self, rank) for rank in range(setting.agents)]
        self.processes = [process for agent in self.agents for process in agent.processes]
        self._begin(schedule.random)

    def _begin(self, random: Random) -> None:
        setting, after = self.setting, self.schedule.after
        span = 2 * setting.step_seconds + 2 * setting.faults.delay_seconds
        for agent in self.agents:
            late = random.random() * span if random.random() < setting.late_join else 0.0
            after(late, "an agent connects", agent.begin)
            for process in agent.processes:
                after(random.random() * setting.step_seconds, "a process begins", process.begin)
        for _ in range(random.choice((1, 1, 2, 3))):
            asking, tier = random.choice(self.agents), random.choice(list(KeptIn))
            at = random.random() * span + (setting.faults.delay_seconds if setting.is_calm else 0.0)
            after(at, "an agent is to leave", lambda asking=asking, tier=tier: asking.want(tier))
        for _ in range(setting.deaths):
            dying, silently = random.choice(self.agents), random.random() < 0.3
            at = random.random() * 2 * span
            after(at, "an agent dies", lambda dying=dying, silently=silently: dying.die(silently=silently))
        for _ in range(setting.failures):
            failing = random.choice(self.processes)
            after(random.random() * 2 * span, "a process fails", lambda failing=failing: failing.exit(1))

    def stall_seconds(self) -> float:
        """Draw for how long somebody stands still here; mostly not at all."""
        if not self.setting.stall or self.schedule.random.random() >= self.setting.stall:
            return 0.0
        return self.schedule.random.choice((0.002, 1.5, 6.0, 12.0, 30.0))

    def enter(self, process: Process) -> None:
        """Take note of a step that begins."""
        random, seconds = self.schedule.random, self.setting.step_seconds
        if not self.setting.in_lockstep:
            self.schedule.after(random.random() * seconds, "a step ends", process.finish)
            return
        self._in_step.append(process)
        all_have_begun = min(process.begun for process in self.processes)
        ready = [process for process in self._in_step if process.begun <= all_have_begun]
        if ready:
            self._in_step = [process for process in self._in_step if process.begun > all_have_begun]
            for one in ready:
                self.schedule.after(random.random() * seconds, "a step ends", one.finish)

    def save(self, process: Process) -> None:
        """Have a process save the step that it leaves after; in lockstep it waits for the others' parts."""
        self._saving.append(process)
        if self.setting.in_lockstep and len(self._saving) < len(self.processes):
            return
        random = self.schedule.random
        for one in self._saving if self.setting.in_lockstep else [process]:
            seconds = random.random() * self.setting.save_seconds
            self.schedule.after(seconds, "a process leaves", one.leave)

    def break_(self, least_seconds: float = 0.0) -> None:
        """Have the controller tell the agents that a failure has ended the round."""
        if not self._is_broken:
            self._is_broken = True
            for agent in self.agents:
                seconds = least_seconds + self.schedule.random.choice((0.05, 3.0, 20.0))
                self.schedule.after(seconds, "an agent hears of a death", agent.learn_of_death)

    def last_step(self, agreed: int) -> int:
        """Return the first step that there is from the agreed one on."""
        return agreed + (-1 - agreed) % self.setting.stride

    def check_counted(self, decision: Message) -> None:
        """Check that all have answered the vote that is decided; the chair's own agent does so unseen."""
        if not all(process.speaks for process in self.processes):
            self.wrong.append(f"counted: {decision} although a process takes part in no votes")
        for process in self.agents[0].processes:
            if process.begun > self.last_step(decision.step) and process.speaks == TAKES_PART:
                self.wrong.append(f"counted: {decision} although the chair has begun step {process.begun}")
        for agent in self.agents[1:]:
            if agent.answer.number != decision.number or agent.answer.step >= decision.step:
                self.wrong.append(
                    f"counted: {decision} although agent {agent.rank} has answered {agent.answer}"
                )

    def violations(self) -> list[str]:
        """Return what does not hold at the end."""
        wrong = self.wrong
        steps = {process.left_after for process in self.processes} - {None}
        if len(steps) > 1:
            wrong.append(f"steps: processes have left after {sorted(steps)}")
        if len(self.agreed) > 1:
            wrong.append(f"agreed: agents have agreed on {self.agreed}")
        for process in self.processes:
            if process.waits:
                wrong.append("held: a process waits for ever")
        for agent in self.agents:
            if not agent.is_gone and (agent.mode == "leave" or (agent.wish and not agent.outcome)):
                wrong.append(f"outcome: agent {agent.rank} has none")
        for agreed in self.agreed:
            self._check_agreed(agreed)
        if self.setting.is_calm:
            self._check_calm()
        return wrong

    def _check_agreed(self, agreed: VoteResult) -> None:
        for process in self.processes:
            ballot = process.agent.ballot
            is_bound = ballot is not None and ballot.agreed is not None and process.speaks == TAKES_PART
            if process.begun > self.last_step(agreed.step) and is_bound:
                self.wrong.append(f"beyond: a process has begun step {process.begun} after {agreed}")
        asked = [agent.wish for agent in self.agents if agent.wish is not None]
        in_time = [agent.wish_in_time for agent in self.agents]
        keep = [process.keeps_in for process in self.processes]
        if not max(*in_time, *keep) <= agreed.tier <= max(*asked, *keep):
            self.wrong.append(f"tier: {agreed} although {asked} were asked for, and {keep} can be kept")

    def _check_calm(self) -> None:
        for agent in self.agents:
            if agent.outcome not in LEAVING:
                self.wrong.append(f"calm: the vote of agent {agent.rank} came to {agent.outcome}")
            elif agent.ballot is not None and agent.ballot.lost_at is not None:
                self.wrong.append(f"calm: agent {agent.rank} takes another for lost")
        if len({(process.left_after, process.tier) for process in self.processes}) != 1:
            self.wrong.append("calm: not all have left after the same step for the same tier")
