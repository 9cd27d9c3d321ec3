"""Which processes go from one round into the next, and which are started for it; with processes of the test's own."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.facts.place import Place
from agent.survival import kept as kept_module
from agent.survival.desk import ProcessStatements
from agent.survival.kept import KeptProcesses, why_none_lives_on
from agent.survival.messages import MAX_NUMBER, Left, Lost

TRAINS = ProcessStatements(entered=True)


class Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class Desk:
    """The statements of processes, and what they are handed."""

    path = "/world"

    def __init__(self) -> None:
        self.statements: dict[int, ProcessStatements] = {}
        self.asked: list[tuple[int, int]] = []
        self.handed: dict[int, Mapping[str, str]] = {}
        self.expected: Collection[int] = ()
        self.answers: dict[int, ProcessStatements] = {}
        """What processes say once they are asked to leave."""

    def words(self, pid: int) -> ProcessStatements:
        return self.statements.get(pid, ProcessStatements())

    def leave(self, pid: int, round_: int) -> bool:
        self.asked.append((pid, round_))
        return True

    def look(self) -> None:
        self.statements |= {pid: self.answers[pid] for pid, _ in self.asked if pid in self.answers}

    def fds(self) -> list[int]:
        return []

    def expect(self, pids: Collection[int], _: int = 0) -> None:
        self.expected = list(pids)

    def hand_over(self, pid: int, env: Mapping[str, str], _: Mapping[int, int]) -> bool:
        if self.words(pid).unable:
            return False
        self.handed[pid] = env
        return True


class Processes:
    """Those of a round, by local rank."""

    def __init__(self, *pids: int) -> None:
        self.processes = {rank: Process(pid) for rank, pid in enumerate(pids)}
        self.pcontext = self
        self.pids = {rank: process.pid for rank, process in self.processes.items()}
        self.exit_codes: dict[int, int] = {}
        self.stopped: list[int] = []

    def alive(self) -> dict[int, int]:
        return {rank: pid for rank, pid in self.pids.items() if rank not in self.exit_codes}

    def let_go(self, local_rank: int) -> None:
        del self.pids[local_rank]

    def stop(self, *_: object) -> None:
        self.stopped = list(self.alive().values())


class Agent:
    """What the processes of an agent go through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spares: Any = None) -> None:
        self.desk, self.memory = (
            Desk(),
            SimpleNamespace(lives=0, lives_on=False, bound_to=None, no_newcomers=False),
        )
        self.ended: list[int] = []
        self.clock = 0.0
        self.has_stepped = False
        orphans = SimpleNamespace(kill=lambda **_: [], living_on=None, sessions_below=set)
        self.kept = KeptProcesses(self.desk, self.memory, orphans, spares, lambda: self.has_stepped)  # type: ignore[arg-type]
        monkeypatch.setattr(kept_module, "detach_process", lambda context, rank: context.processes[rank])
        monkeypatch.setattr(kept_module, "started_process", lambda context, rank: context.processes[rank])
        monkeypatch.setattr(kept_module, "handles", SimpleNamespace(end=self._end))
        monkeypatch.setattr(kept_module.select, "poll", lambda: SimpleNamespace(poll=self._pass))
        monkeypatch.setattr(kept_module.time, "monotonic", lambda: self.clock)

    def _end(self, processes: Any, _: float = 0.0) -> None:
        self.ended += [process.pid for process in processes]

    def _pass(self, milliseconds: float) -> None:
        self.clock += milliseconds / 1000

    def start(
        self, round_: int, *pids: int, is_virtual: bool = False
    ) -> tuple[Processes, list[dict[str, str]]]:
        """Start a round, with these ids for processes that are started; return their environments, too.

        Args:
            is_virtual: torchrun's --virtual-local-rank, with which each process sees one device, its first.
        """
        self.kept.begin(round_)
        envs, fresh, all_ = [], iter(pids), []
        for rank in range(2):
            own = {"LOCAL_RANK": "0" if is_virtual else str(rank), "RANK": str(rank), "HOME": "/"}
            envs.append(own | self.kept.variables())
        for rank, env in enumerate(envs):
            handed = self.kept.hand_over(rank, env, {})
            all_.append(next(fresh) if handed is None else handed.pid)
        processes = Processes(*all_)
        self.kept.started(processes.pids)  # type: ignore[arg-type]
        return processes, envs


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    return Agent(monkeypatch)


def keep_one(agent: Agent, processes: Processes, local_rank: int = 0, bound_to: Place | None = None) -> None:
    """The other process has died."""
    pid = processes.pids[local_rank]
    agent.desk.statements[pid] = ProcessStatements(entered=True, bound_to=bound_to)
    agent.desk.answers[pid] = ProcessStatements(entered=True, bound_to=bound_to, left=1)
    processes.exit_codes[1 - local_rank] = -9
    agent.kept.keep(1, processes, 1.0)  # type: ignore[arg-type]


def test_a_round_is_handed_to_who_has_left_the_last_one_and_only_the_others_are_started(agent: Agent) -> None:
    first, envs = agent.start(1, 10, 11)
    assert not any("DLR_JOINS" in env for env in envs)
    assert all(env["DLR_WORLD_SOCKET"] == "/world" and env["DLR_ROUND"] == "1" for env in envs)
    keep_one(agent, first)
    assert agent.desk.asked == [(10, 1)] and agent.kept.pids() == [10] and agent.memory.lives == 1
    assert first.stopped == [] and agent.ended == []
    agent.memory.lives_on = True
    second, envs = agent.start(2, 20)
    assert second.pids == {0: 10, 1: 20} and "DLR_JOINS" not in envs[0] and envs[1]["DLR_JOINS"] == "1"
    handed = agent.desk.handed[10]
    assert handed["DLR_ROUND"] == "2" and handed["RANK"] == "0" and "HOME" not in handed
    assert agent.desk.expected == [10, 20] and agent.kept.pids() == [] and agent.memory.lives == 0
    status = agent.kept.to_status()
    assert status is not None and (status.round, status.processes) == (2, 1)


def test_processes_go_on_where_each_has_its_device_as_the_first(agent: Agent) -> None:
    first, _ = agent.start(1, 10, 11, is_virtual=True)
    keep_one(agent, first, 1)
    agent.memory.lives_on = True
    second, envs = agent.start(2, 20, is_virtual=True)
    assert second.pids == {0: 20, 1: 11} and agent.ended == []
    assert "DLR_JOINS" in envs[0] and "DLR_JOINS" not in envs[1] and agent.kept.pids() == []


def test_the_place_that_kept_processes_are_bound_to_is_that_of_the_first_one(agent: Agent) -> None:
    first, _ = agent.start(1, 10, 11)
    keep_one(agent, first, 1, Place(5, 8))
    assert agent.memory.bound_to == (4, 8)
    agent.start(2, 20, 21)
    assert agent.memory.bound_to is None, "it has ended"


def test_where_the_members_do_not_go_on_together_who_was_kept_ends(agent: Agent) -> None:
    first, _ = agent.start(1, 10, 11)
    keep_one(agent, first)
    second, envs = agent.start(2, 20, 21)
    assert agent.ended == [10] and second.pids == {0: 20, 1: 21}
    assert not any("DLR_JOINS" in env for env in envs) and agent.kept.to_status() is None


@pytest.mark.parametrize("how", ["before its environment", "just after"])
def test_a_newcomer_takes_the_place_of_one_that_died_while_it_waited(agent: Agent, how: str) -> None:
    first, _ = agent.start(1, 10, 11)
    keep_one(agent, first)
    agent.memory.lives_on = True
    if how == "just after":
        agent.desk.statements[10] = ProcessStatements(entered=True, unable=True)
    else:
        first.processes[0].code = -9
    second, envs = agent.start(2, 20, 21)
    assert second.pids == {0: 20, 1: 21} and all(env["DLR_JOINS"] == "1" for env in envs)


def test_who_does_not_leave_in_time_is_ended_and_who_has_left_by_itself_is_not_asked(agent: Agent) -> None:
    first, _ = agent.start(1, 10, 11)
    lost = ProcessStatements(entered=True, left=1, lost=Lost(1, "gone"))
    agent.desk.statements = {10: lost, 11: TRAINS}
    assert agent.kept.lost(first) == {0: "gone"}  # type: ignore[arg-type]
    agent.kept.keep(1, first, 1.0)  # type: ignore[arg-type]
    assert agent.desk.asked == [(11, 1)] and agent.ended == [11] and agent.kept.pids() == [10]
    assert agent.clock == kept_module.LEAVE_SECONDS


ROUNDS = st.integers(0, MAX_NUMBER)


@given(st.lists(st.one_of(st.builds(Left, ROUNDS), st.builds(Lost, ROUNDS, st.just("gone")))), ROUNDS)
def test_no_message_leaves_a_round_later_than_that_of_its_process(
    messages: list[Left | Lost], round_: int
) -> None:
    words = TRAINS
    for message in messages:
        words = words.after(message, round_)
        assert words.left >= min(message.round, round_)
    assert words.left <= round_ and (words.lost is None or words.lost.round <= round_)


def test_what_was_lost_of_an_earlier_round_says_nothing_of_this_one(agent: Agent) -> None:
    first, _ = agent.start(2, 10, 11)
    agent.desk.statements = {10: ProcessStatements(entered=True, left=1, lost=Lost(1, "gone"))}
    assert agent.kept.lost(first) == {}  # type: ignore[arg-type]


class Newcomers:
    """Rounds of an agent in which one newcomer joins a process that lives on, or all start again."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.round, self.pids = agent, 1, count(20)
        self.processes: Any = agent.start(1, 10, 11)[0]

    def join(self, code: int | None = None, *, hangs: bool = False) -> bool:
        """End a process, have another one join; it ends with that code, or comes to its loop.

        Returns:
            whether newcomers are refused then.
        """
        agent, kept = self.agent, self.processes.pids[0]
        agent.desk.statements[kept] = ProcessStatements(entered=True, left=self.round)
        self.processes.exit_codes[1] = -9
        agent.kept.keep(self.round, self.processes, 1.0)
        agent.memory.lives_on, self.round = True, self.round + 1
        self.processes = agent.start(self.round, next(self.pids))[0]
        if code is not None:
            self.processes.exit_codes[1] = code
        elif not hangs:
            agent.desk.statements[self.processes.pids[1]] = TRAINS
        return self.look(hangs=hangs)

    def start_all(self, *, train: bool) -> bool:
        """All processes start again; return whether newcomers are refused then."""
        self.agent.memory.lives_on, self.round = False, self.round + 1
        self.processes = self.agent.start(self.round, next(self.pids), next(self.pids))[0]
        if train:
            self.agent.desk.statements |= dict.fromkeys(self.processes.pids.values(), TRAINS)
        return self.look()

    def look(self, *, hangs: bool = False) -> bool:
        for _ in range(2):  # who has ended counts once
            self.agent.kept.look(self.processes, hangs=hangs)
        return self.agent.memory.no_newcomers


@pytest.fixture
def newcomers(agent: Agent) -> Newcomers:
    return Newcomers(agent)


def test_newcomers_are_refused_once_two_in_a_row_have_not_come_to_their_loop(newcomers: Newcomers) -> None:
    assert not newcomers.join(code=3)
    assert newcomers.join(code=0)


def test_a_newcomer_in_its_loop_is_the_end_of_the_row(newcomers: Newcomers) -> None:
    assert not newcomers.join(code=1)
    assert not newcomers.join()
    newcomers.processes.exit_codes[1], newcomers.agent.has_stepped = 1, True
    newcomers.agent.kept.look(newcomers.processes, hangs=True)
    assert not newcomers.join(code=1)
    assert newcomers.join(code=1)


def test_one_that_hangs_before_its_loop_has_cost_enough(newcomers: Newcomers) -> None:
    assert newcomers.join(hangs=True)


def test_a_newcomer_that_is_killed_says_nothing_of_its_script(newcomers: Newcomers) -> None:
    assert not any(newcomers.join(code=-9) for _ in range(5))


def test_newcomers_are_tried_again_when_all_have_started_again_and_train_but_not_for_ever(
    newcomers: Newcomers,
) -> None:
    newcomers.join(code=1)
    assert newcomers.join(code=1)
    assert newcomers.start_all(train=False)
    assert not newcomers.start_all(train=True)
    assert newcomers.join(code=1)
    assert not newcomers.start_all(train=True)
    assert newcomers.join(code=1)
    assert newcomers.start_all(train=True), "four in a row: the script cannot be joined"


@pytest.mark.parametrize("how", ["hangs", "raises", "aborts"])
def test_after_a_joined_round_that_fails_without_a_step_all_start_again(
    newcomers: Newcomers, how: str
) -> None:
    """A script whose first step differs from later ones: what a newcomer awaits, the others do not send."""
    agent = newcomers.agent

    def fails() -> bool:
        newcomers.join()
        if how == "hangs":
            agent.kept.note_failed_round()
        if code := {"raises": 1, "aborts": -signal.SIGABRT}.get(how):
            newcomers.processes.exit_codes[1] = code
        return newcomers.look()

    for _ in range(2):
        assert fails()
        assert not newcomers.start_all(train=True)
    assert fails()
    assert newcomers.start_all(train=True), "three in a row: each one costs a round"


def test_one_joined_round_may_be_lost_by_a_death_that_is_not_known_yet(newcomers: Newcomers) -> None:
    agent = newcomers.agent
    for refuses in (False, True):
        newcomers.join()
        agent.kept.note_failed_round(by_a_peer=True)
        assert agent.memory.no_newcomers == refuses


def test_a_process_that_ends_well_in_a_joined_round_has_nothing_left_to_do(newcomers: Newcomers) -> None:
    newcomers.join()
    newcomers.processes.exit_codes[1] = 0
    assert not newcomers.look()


def test_a_process_that_is_killed_in_a_joined_round_says_nothing_of_its_script(newcomers: Newcomers) -> None:
    newcomers.join()
    newcomers.processes.exit_codes[1] = -signal.SIGKILL
    assert not newcomers.look()


def test_a_joined_round_with_a_step_may_fail(newcomers: Newcomers) -> None:
    agent = newcomers.agent
    for has_stepped in (False, True, False, True, False):
        newcomers.join()
        agent.has_stepped = has_stepped
        newcomers.look()
        agent.kept.note_failed_round()
        assert agent.memory.no_newcomers != has_stepped
        agent.kept.keep(newcomers.round, newcomers.processes, 1.0)
        assert not newcomers.start_all(train=True)
        agent.has_stepped = False


def test_a_round_that_none_has_joined_may_fail_before_its_first_step(newcomers: Newcomers) -> None:
    newcomers.start_all(train=True)
    newcomers.agent.kept.note_failed_round()
    assert not newcomers.agent.memory.no_newcomers


def test_a_spare_that_cannot_be_handed_the_round_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    spare = Process(30)
    spares = SimpleNamespace(pids=list, take=lambda rank, _: spare if rank == 1 else None)
    agent = Agent(monkeypatch, spares)
    first, _ = agent.start(1, 10, 11)
    keep_one(agent, first)
    agent.memory.lives_on = True
    agent.desk.statements[30] = ProcessStatements(unable=True)
    second, _ = agent.start(2, 20)
    assert second.pids == {0: 10, 1: 20} and agent.ended == [30]


def test_the_end_of_the_agent_is_the_end_of_who_was_kept(agent: Agent) -> None:
    first, _ = agent.start(1, 10, 11)
    keep_one(agent, first)
    agent.kept.stop(5.0)
    assert agent.ended == [10] and agent.kept.pids() == [] and agent.memory.lives == 0


def test_without_a_desk_everything_is_as_ever() -> None:
    orphans: Any = SimpleNamespace(kill=lambda **_: [], living_on=None, sessions_below=set)
    kept, processes = KeptProcesses(None, None, orphans), Processes(10)
    kept.begin(1)
    assert kept.variables() == {} and kept.fds() == [] and kept.hand_over(0, {}, {}) is None
    kept.started(processes.pids)
    kept.look(processes, hangs=True)  # type: ignore[arg-type]
    assert not kept.lives_on(processes) and kept.pids() == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("forks", "has_memory", "torch_version", "why"),
    [
        (True, True, "2.14.1+cpu", ""),
        (True, True, "2.13.0+cpu", r"from torch 2\.14 on, and this is torch 2\.13\.0\+cpu"),
        (True, False, "2.14.1", "memoryCheckpoint"),
        (False, True, "2.14.1", "warm start"),
    ],
)
def test_what_keeps_processes_from_living_on_is_named(
    forks: bool, has_memory: bool, torch_version: str, why: str
) -> None:
    found = why_none_lives_on(forks=forks, has_memory=has_memory, torch_version=torch_version)
    assert bool(found) == bool(why)
    assert re.search(why, found)


def test_only_what_spares_left_running_ends_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script that ended well left running goes on, with and without spares."""
    spares = [SimpleNamespace(pid=7)]
    agent = Agent(monkeypatch, SimpleNamespace(give_up=lambda: spares, pids=list))
    killed = list[object]()
    orphans: Any = agent.kept._orphans
    orphans.sessions_below, orphans.kill = set, lambda *, sessions: killed.append(sessions)
    agent.kept.stop(5.0)
    assert agent.ended == [7] and killed == [{7}]
    spares.clear()
    agent.kept.stop(5.0)
    assert killed == [{7}]
