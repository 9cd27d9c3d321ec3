"""How the elastic agent carries the orders of its course out, over false processes."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.timer import FileTimerServer

from agent.facts.world import WAIT, AgentWorld, Member
from agent.membership import RoundStanding
from agent.monitor.hang import LOOK_SECONDS
from agent.processes import processes as processes_module
from agent.processes.orphans import Orphans
from agent.processes.processes import TrainingProcesses
from agent.supervision import course, elastic_agent
from agent.supervision.elastic_agent import DlrElasticAgent
from agent.supervision.ending import GoodEnds
from agent.survival.kept import KeptProcesses
from crds.agent_report import RankStack
from crds.phases import RendezvousPhase


def agent_with(**parts: Any) -> DlrElasticAgent:
    agent = DlrElasticAgent.__new__(DlrElasticAgent)
    agent.__dict__ |= parts
    return agent


class Dying:
    """Processes of which some have ended by the time somebody looks."""

    def __init__(self) -> None:
        self.pids, self.ended, self.exit_codes = {0: 10, 1: 11}, dict[int, int](), dict[int, int]()

    @property
    def all_exited(self) -> bool:
        return len(self.exit_codes) == len(self.pids)

    def exit_fds(self) -> list[int]:
        return [pid for rank, pid in self.pids.items() if rank not in self.exit_codes]

    def alive(self) -> dict[int, int]:
        self.exit_codes |= self.ended
        return {rank: pid for rank, pid in self.pids.items() if rank not in self.exit_codes}


def test_an_end_that_others_have_collected_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    poll = SimpleNamespace(register=lambda *_: None, poll=waits.append)
    monkeypatch.setattr(elastic_agent, "select", SimpleNamespace(poll=lambda: poll, POLLIN=1))
    monkeypatch.setattr(elastic_agent, "time", SimpleNamespace(monotonic=lambda: 0.0))
    view = SimpleNamespace(asks_for_stacks=None, hang_timeout_seconds=60.0)
    unused: Any = None
    processes = Dying()

    def new_failures(_: object) -> list[int]:
        processes.alive()
        return [rank for rank, code in processes.exit_codes.items() if code]

    agent = agent_with(
        _processes=processes,
        _pcontext=None,
        _exits_seen=0,
        _kept=KeptProcesses(None, None, Orphans("A=")),
        _orphans=SimpleNamespace(reap=lambda spared: None),
        _membership=SimpleNamespace(
            fileno=lambda: 3, look=lambda: (WAIT, view), standing=RoundStanding(unused, None)
        ),
        _device_watch=SimpleNamespace(fileno=lambda: 4),
        _votes=SimpleNamespace(fds=list),
        _hang_guard=SimpleNamespace(
            look=lambda: None, hangs=lambda _: False, may_hang=lambda _, asked: False
        ),
        _worker_group=SimpleNamespace(workers=[]),
        _lingering=SimpleNamespace(look=lambda *_: False),
        _stacks_desk=SimpleNamespace(look=lambda *_: None),
        _post_mortem=SimpleNamespace(new_failures=new_failures),
    )
    assert not agent._carry_out(course.AwaitChange()).failed
    processes.ended[1] = 1
    processes.alive()  # as a vote, or a hang guard
    assert agent._carry_out(course.AwaitChange()).failed
    agent._carry_out(course.AwaitChange())
    assert waits == [LOOK_SECONDS * 1000, 0, LOOK_SECONDS * 1000], "and nothing spins then"


@pytest.mark.parametrize("state", [WorkerState.HEALTHY, WorkerState.UNHEALTHY, WorkerState.UNKNOWN])
def test_functions_that_torch_has_not_collected_have_not_ended_well(state: WorkerState) -> None:
    """UNHEALTHY: one waits in the kernel for longer than TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT."""
    agent = agent_with(_monitor_workers=lambda _: RunResult(state), _worker_group=None)
    assert agent._carry_out(course.CollectEnds()) is course.ProcessesEnd.NOT_YET


def test_a_rank_works_alone_once_all_others_have_ended_well_and_it_waits_for_none() -> None:
    store, alive, stacks, codes, alive_at = (
        HashStore(),
        {0: 10},
        [RankStack(4)],
        dict[int, int](),
        list[None](),
    )
    world = AgentWorld(1, RendezvousPhase.FORMED, (Member(0, 1), Member(1, 1)), 4)
    here, there = GoodEnds(), GoodEnds()
    here.meet(store, 0, world), there.meet(store, 1, world)
    processes: Any = SimpleNamespace(pids={0: 10, 1: 11}, exit_codes=codes)
    agent = agent_with(
        _good_ends=here,
        _post_mortem=SimpleNamespace(with_scripts=lambda _: alive),
        _hang_guard=SimpleNamespace(
            stacks_of=lambda _: lambda: stacks, note_life=lambda: alive_at.append(None)
        ),
    )
    assert not agent._works_alone(processes), "the other agent's processes train"
    there.note_own()
    assert agent._works_alone(processes) and len(alive_at) == 1, "its time begins again"
    stacks[0] = RankStack(4, in_collective=True)
    assert not agent._works_alone(processes)
    stacks[0], alive[1] = RankStack(4), 11
    assert not agent._works_alone(processes), "two may wait for each other"
    del alive[1]
    codes[1] = 1
    assert not agent._works_alone(processes), "it may wait for the one that failed"


def test_the_watchdog_of_a_round_ends_before_the_next_one_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each has a thread, and a pipe of that name where TORCHELASTIC_TIMER_FILE names none."""

    def start(agent: Any, _: object) -> None:
        agent._setup_local_watchdog({})
        raise OSError

    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(FileTimerServer, "start", lambda _: None)
    monkeypatch.setattr(LocalElasticAgent, "_start_workers", start)
    monkeypatch.setattr(elastic_agent, "abandon_start", lambda *_: None)
    part: Any = SimpleNamespace(round=1, begin=lambda *_: None, await_warm_parent=int, by_us=nullcontext)
    names = ("_starting", "_post_mortem", "_lingering", "_kept", "_membership", "_orphans")
    agent = agent_with(
        **dict.fromkeys(names, part), _worker_watchdog=None, _log_watchdog_event=lambda *_: None
    )
    for _ in range(3):
        with pytest.raises(OSError):
            agent._start_workers(part)
        assert len(list(tmp_path.iterdir())) == 1


def test_processes_that_were_released_get_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's `run` shuts down once more at its end; their process ids may be others' by then."""
    touched: list[Any] = []
    monkeypatch.setattr(processes_module, "open_exit_fd", lambda _: os.open(os.devnull, os.O_RDONLY))
    for name in ("above_scripts", "send"):
        monkeypatch.setattr(processes_module, name, lambda *args: touched.append(args) or [])
    monkeypatch.setattr(TrainingProcesses, "collect_exits", lambda _: touched.append("looked at") or {})
    pcontext: Any = SimpleNamespace(pids=lambda: {0: os.getpid()})
    orphans: Any = SimpleNamespace(started=lambda _: None)
    processes = TrainingProcesses(pcontext, orphans)
    processes.release()
    processes.stop(signal.SIGTERM, 30.0)
    assert not touched
