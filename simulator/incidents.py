"""Failures of a crew's processes, Pods and nodes, and the times at which the controller sees them. The plan
decides what follows (`Crew.look`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from crds.agent_report import FailureCause, RankStack
from simulator import objects
from simulator.crew import Crew
from simulator.state import SimulationState

ANSWER_SECONDS = 0.3
"""Seconds until the ranks of a hang have reported their stacks."""


def process_fails(crew: Crew, node: int) -> None:
    """A training process dies; its Pod lives."""
    message = f"RuntimeError: CUDA error: an illegal memory access was encountered on {_in_letters(node)}"
    _fails(crew, node, survives=True, exit_code=1, message=message)


def device_fails(crew: Crew, node: int) -> None:
    """A GPU fails, and its driver reports it."""
    crew.state.nodes.ill.add(node)
    message = f"GPU 0: Xid 79: GPU has fallen off the bus of {_in_letters(node)}"
    survives = crew.state.fleet.policies.replicas > 0
    _fails(crew, node, survives=survives, exit_code=1, cause=FailureCause.DEVICE, message=message)


def corruption_shows(crew: Crew, node: int, work: float) -> None:
    """Work beyond `work` is wrong; training goes back to a checkpoint in storage."""
    if not crew.trains:
        return
    message = f"RuntimeError: the loss is NaN since {_in_letters(node)}"
    _fails(crew, node, survives=False, limit=work, exit_code=1, message=message)


def _fails(crew: Crew, node: int, *, survives: bool, limit: float | None = None, **failure: Any) -> None:
    state = crew.state
    if not crew.job.is_formed or not crew.noticed:
        return  # no process runs, or all wait for a dead one
    index = crew.show(node)
    if index not in crew.job.world.members:
        return
    round_, step = crew.job.world.round, crew.step - 1
    crew.stop_training(planned=False, survives=survives, limit=limit)
    state.count_interruption()

    def report() -> None:
        worker = crew.job.workers.get(index)
        if worker is None or not crew.job.lives(index) or crew.job.world.round != round_:
            return
        now = state.at()
        crew.job.put(objects.failed(worker, round_, now, rank=index, step=max(step, 0), **failure))
        crew.look()

    state.clock.after(state.fleet.times.detect_seconds, report)


def hangs(crew: Crew, node: int) -> None:
    """No rank makes a step any more, until a time-out."""
    state = crew.state
    if not crew.trains:
        return
    index, round_ = crew.show(node), crew.job.world.round
    if index not in crew.job.world.members:
        return
    crew.stop_training(planned=False)
    state.count_interruption()
    timeout = state.fleet.policies.hang_timeout_seconds
    watchdog = state.fleet.times.watchdog_seconds
    report = _report_hang if timeout <= watchdog else _report_watchdog
    state.clock.after(min(timeout, watchdog), lambda: _if_still(crew, round_, lambda: report(crew, index)))


def _if_still(crew: Crew, round_: int, happens: Callable[[], None]) -> None:
    if crew.job.world.round == round_ and crew.job.is_formed and not crew.trains:
        happens()


def _report_watchdog(crew: Crew, index: int) -> None:
    """Let every rank's NCCL watchdog end it, so that the first failure does not show."""
    message = "RuntimeError: Watchdog caught collective operation timeout"
    worker, now = crew.job.workers[index], crew.state.at()
    crew.job.put(objects.failed(worker, crew.job.world.round, now, rank=index, exit_code=-6, message=message))
    crew.look()


def _report_hang(crew: Crew, culprit: int) -> None:
    round_ = crew.job.world.round
    first = next((i for i in crew.job.members() if i != culprit), culprit)
    _report_place(crew, first, culprit)
    crew.look()

    def others_report() -> None:
        if crew.job.world.round == round_:
            for index in list(crew.job.members()):
                if index != first:
                    _report_place(crew, index, culprit)
            crew.look()

    crew.state.clock.after(ANSWER_SECONDS, others_report)


def _report_place(crew: Crew, index: int, culprit: int) -> None:
    place = "in read_cache" if index == culprit else "in all_reduce"
    stack = RankStack(rank=index, in_collective=index != culprit, frames=place)
    round_, now = crew.job.world.round, crew.state.at()
    text = f"no step for {crew.state.fleet.policies.hang_timeout_seconds} s: rank {index} is {place}"
    crew.job.put(
        objects.failed(
            crew.job.workers[index],
            round_,
            now,
            rank=index,
            cause=FailureCause.HANG,
            message=text,
            stacks=[stack],
        )
    )


def fall_silent(state: SimulationState[Crew], nodes: Sequence[int], seconds: float | None) -> None:
    """Nodes lose power or network, for `seconds` or until each is repaired."""
    state.down.update(nodes)
    crews: dict[int, tuple[Crew, list[int]]] = {}
    for node in nodes:
        crew = state.crew_of.get(node)
        if crew is not None:
            crews.setdefault(id(crew), (crew, []))[1].append(node)
        state.nodes.free.discard(node)
    for crew, theirs in crews.values():
        crew.settle()
        _members_fall_silent(crew, theirs)
    for node in nodes:
        if seconds is None:
            state.repair(node)
        else:
            state.clock.after(seconds, partial(state.restore, node))


def take_away(state: SimulationState[Crew], node: int, seconds: float | None) -> None:
    """A node is preempted with a notice; it comes back after `seconds`, or never."""
    crew = state.crew_of.get(node)
    if crew is None:
        return
    state.away.add(node)
    crew.settle()
    _preempted(crew, node)

    def back() -> None:
        state.away.discard(node)
        state.nodes.release(node)
        state.place_waiting()

    if seconds is not None:
        state.clock.after(seconds, back)
    else:
        state.nodes.forget(node)


def _members_fall_silent(crew: Crew, nodes: list[int]) -> None:
    state = crew.state
    indices = [crew.show(node) for node in nodes]
    lost = set(indices) & set(crew.job.world.members)
    if lost and crew.job.is_formed:
        crew.stop_training(planned=False, survives=state.fleet.policies.replicas > 0)
        state.count_interruption()
    timeout = float(state.fleet.policies.heartbeat_timeout_seconds)
    lives = {index: crew.job.workers[index].spec.incarnation for index in indices}

    def noticed() -> None:
        for index, incarnation in lives.items():
            worker = crew.job.workers.get(index)
            if worker is not None and worker.spec.incarnation == incarnation:
                crew.job.put(objects.silent(crew.job.job, worker, timeout, state.at()))
        crew.look()

    state.clock.after(timeout, noticed)
    if lost and state.fleet.times.peer_loss_seconds is not None:
        round_ = crew.job.world.round
        peers = lambda: _if_still(crew, round_, lambda: _peers_fail(crew, lost))  # noqa: E731
        state.clock.after(state.fleet.times.peer_loss_seconds, peers)


def _peers_fail(crew: Crew, lost: set[int]) -> None:
    """Let a peer that lost its connections report first, without the first failure."""
    index = next((i for i in crew.job.members() if i not in lost), None)
    if index is None:
        return
    message = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    worker, round_ = crew.job.workers[index], crew.job.world.round
    crew.job.put(objects.failed(worker, round_, crew.state.at(), rank=index, exit_code=1, message=message))
    crew.look()


def _preempted(crew: Crew, node: int) -> None:
    """Delete the node's Pod with time to leave in good order, so that no step is lost."""
    index = crew.show(node)
    worker = crew.job.workers[index]
    if index in crew.job.world.members and crew.trains:
        crew.stop_training(planned=True)
        crew.state.count_interruption()
    crew.job.put(objects.deleted(crew.job.job, worker, crew.state.at(), preempted=True))
    crew.look()


def pod_is_deleted(crew: Crew, node: int) -> None:
    """Delete a node's Pod with no time to stop."""
    index = crew.show(node)
    if index in crew.job.world.members and crew.job.is_formed:
        crew.stop_training(planned=False, survives=crew.state.fleet.policies.replicas > 0)
        crew.state.count_interruption()
    crew.job.put(objects.deleted(crew.job.job, crew.job.workers[index], crew.state.at(), preempted=False))
    crew.look()


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _in_letters(number: int) -> str:
    """Return a number in letters: errors that differ only in numbers count as the same."""
    word = ""
    while True:
        number, rest = divmod(number, 26)
        word += _LETTERS[rest]
        if not number:
            return word
