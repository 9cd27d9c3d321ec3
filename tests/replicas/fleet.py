"""Groups of real processes that train, with a coordinator in the test in place of agents and controller."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agent.replicas import client
from crds import grouping
from crds.phases import JobPhase, RendezvousPhase
from crds.replica_groups import Membership
from reconcilers.groups.membership import GroupView, decide
from tests.forks import forks


@dataclass(frozen=True)
class Place:
    """What a process has to find its group and the coordinator by."""

    group: int
    rank: int
    size: int
    round: int
    port: int
    folder: str


class PipeChannel:
    """The channel of a process of the fleet."""

    def __init__(self, place: Place, pipe: Connection) -> None:
        self._place, self._pipe = place, pipe
        self._lock = threading.Lock()
        self._membership: client.VersionGroups | None = None
        self._changed: Callable[[], None] = lambda: None

    @property
    def membership(self) -> client.VersionGroups | None:
        return self._membership

    def look(self) -> client.VersionGroups:
        self._tell("look")
        version, groups = self._pipe.recv()
        return client.VersionGroups(version, groups, (self._place.group, self._place.round))

    def follow(self, changed: Callable[[], None], rank: int, size: int) -> None:
        self._changed = changed
        self._tell("ready", rank)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                version, groups = self._pipe.recv()
            except (EOFError, OSError):
                return
            self._membership = client.VersionGroups(version, groups, (self._place.group, self._place.round))
            self._changed()

    def open_store(self, version: int) -> dist.Store:
        store = dist.TCPStore("127.0.0.1", self._place.port, is_master=False, timeout=timedelta(seconds=300))
        return dist.PrefixStore(f"{version}", store)

    def at(self, version: int, step: int) -> None:
        self._tell("at", version, step, time.monotonic())

    def broken(self, version: int) -> None:
        self._tell("broken", version)

    def left_out(self, version: int) -> None:
        self._tell("left_out", version)

    def late(self, version: int, groups: Sequence[int]) -> None:
        """No group is late within 300 s."""

    def _tell(self, *message: Any) -> None:
        with self._lock:
            self._pipe.send(message)


def _without_numpy(tensor: torch.Tensor) -> None:
    raise RuntimeError("Numpy is not available")  # as torch says where NumPy is not installed


def _main(place: Place, pipe: Connection, script: Callable[..., None], arguments: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    grouping.LEAST_PATIENCE_SECONDS = 300.0  # on a busy machine no group is late that waits for a core
    torch.Tensor.numpy = _without_numpy  # type: ignore[assignment,method-assign]
    os.environ["NCCL_HOSTID"] = f"{place.group}-{place.rank}"  # NCCL refuses to have one GPU twice on a host
    if place.size > 1:
        store = dist.TCPStore("127.0.0.1", place.port, is_master=False)
        prefixed = dist.PrefixStore(f"group-{place.group}-{place.round}", store)
        dist.init_process_group("gloo", store=prefixed, rank=place.rank, world_size=place.size)
    script(place, PipeChannel(place, pipe), **arguments)
    pipe.send(("done",))
    os._exit(0)


@dataclass
class Group:
    index: int
    round: int
    processes: list[Any]
    pipes: list[Connection]
    ready: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    versions: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    broken: int = 0
    left_out: int = 0
    first_step: int | None = None
    """Where it was in the newest version that it is in."""
    is_killed: bool = False

    @property
    def trains(self) -> bool:
        """Whether it has made steps in one version, so that its state is the job's."""
        return self.trains_for(3)

    def trains_for(self, steps: int) -> bool:
        """Whether it has made more steps than that in the newest version that it is in."""
        lives = self.is_ready and not self.is_killed
        return lives and self.first_step is not None and min(self.steps.values()) > self.first_step + steps

    @property
    def is_ready(self) -> bool:
        return len(self.ready) == len(self.processes)

    @property
    def is_over(self) -> bool:
        return len(self.done) == len(self.processes)

    @property
    def view(self) -> GroupView:
        return GroupView(
            index=self.index,
            phase=JobPhase.SUCCEEDED if self.done else JobPhase.RUNNING,
            round=self.round,
            world=RendezvousPhase.FORMED,
            ready_round=self.round if self.is_ready else 0,
            broken_version=self.broken,
            left_out_version=self.left_out,
        )


class Fleet:
    """The groups, of which a new one is started when one has died.

    Args:
        delay_seconds: from a death to the version without the group, as agents and controller take it.
    """

    def __init__(
        self,
        folder: Path,
        script: Callable[..., None],
        groups: int,
        size: int = 1,
        minimum: int = 1,
        delay_seconds: float = 0.03,
        **arguments: Any,
    ) -> None:
        self.folder, self._script, self._size, self._arguments = folder, script, size, arguments
        self._minimum, self._delay_seconds = minimum, delay_seconds
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._round = 0
        self.membership = Membership()
        self.commits: list[tuple[float, int, int, int]] = []
        """Time, group, rank and number of steps of each."""
        self.kills: list[tuple[float, int, int]] = []
        """Time of each, the group, and the round of its processes."""
        self.groups: dict[int, Group] = {}
        self._wanted = set(range(groups))
        self._lock = threading.RLock()
        for index in range(groups):
            self.start(index)

    def start(self, index: int) -> None:
        self._round += 1
        processes, pipes = [], []
        for rank in range(self._size):
            ours, theirs = forks.Pipe()
            place = Place(index, rank, self._size, self._round, self._store.port, str(self.folder))
            process = forks.Process(
                target=_main, args=(place, theirs, self._script, self._arguments), daemon=True
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        self.groups[index] = Group(index, self._round, processes, pipes)

    def kill(self, index: int, rank: int = 0) -> float:
        """Kill a process; the rest of its group follows when the coordinator sees it."""
        process = self.groups[index].processes[rank]
        now = time.monotonic()
        self.kills.append((now, index, self.groups[index].round))
        self.groups[index].is_killed = True
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        return now

    @property
    def version(self) -> int:
        return self.membership.version

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        return tuple((place.index, place.round) for place in self.membership.groups)

    def run_until(self, is_over: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_over():
            if time.monotonic() > deadline:
                state = [
                    (g.index, g.round, g.ready, g.done, g.versions, g.steps) for g in self.groups.values()
                ]
                raise TimeoutError(f"version {self.version} {self.members}: {state}")
            self._look(0.02)

    def _look(self, seconds: float) -> None:
        sources: dict[Any, tuple[Group, int]] = {}
        for group in self.groups.values():
            for rank, process in enumerate(group.processes):
                if rank not in group.done:
                    sources[process.sentinel] = group, rank
                    sources[group.pipes[rank]] = group, rank
        dead = set[int]()
        for source in wait(list(sources), seconds):
            group, rank = sources[source]
            lives = group.processes[rank].is_alive()  # before its last words are read
            try:
                while group.pipes[rank].poll():
                    self._take(group, rank, group.pipes[rank].recv())
            except (EOFError, OSError):
                pass
            if rank not in group.done and not lives:
                dead.add(group.index)
        if dead:
            time.sleep(self._delay_seconds)
        for index in dead:
            self._bury(self.groups[index])
        self._publish()
        if not any(group.done for group in self.groups.values()):  # training has not ended yet
            for index in dead & self._wanted:
                self.start(index)

    def _take(self, group: Group, rank: int, message: Sequence[Any]) -> None:
        if message[0] == "ready":
            group.ready.add(rank)
            if group.is_ready:
                for pipe in group.pipes:
                    self._send(pipe)
        elif message[0] == "look":
            self._send(group.pipes[rank])
        elif message[0] == "at":
            if group.first_step is None or group.versions.get(rank) != message[1]:
                group.first_step = message[2]  # where it was behind, its healing begins again
            _, group.versions[rank], group.steps[rank], at = message
            self.commits.append((at, group.index, rank, message[2]))
        elif message[0] == "done":
            group.done.add(rank)
        elif message[0] == "broken":
            group.broken = message[1]
        else:
            group.left_out = max(message[1], group.left_out)

    def _bury(self, group: Group) -> None:
        for process in group.processes:
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):  # it may have ended just now
                    os.kill(process.pid, signal.SIGKILL)
            process.join()
        group.ready.clear()

    def _publish(self) -> None:
        """As the controller does it."""
        views = [group.view for _, group in sorted(self.groups.items())]
        decided = decide(self.membership, views, self._minimum)
        if decided is not self.membership:
            self.membership = decided
            for group in self.groups.values():
                for rank, pipe in enumerate(group.pipes):
                    if rank in group.ready and rank not in group.done:
                        self._send(pipe)

    def _send(self, pipe: Connection) -> None:
        with contextlib.suppress(OSError):
            pipe.send((self.version, self.members))

    @property
    def is_over(self) -> bool:
        """Whether a group is done, and none that takes part still trains."""
        return any(group.is_over for group in self.groups.values()) and not self.members

    def stop(self) -> None:
        for group in self.groups.values():
            self._bury(group)

    def lines(self) -> list[dict[str, Any]]:
        """What processes wrote of steps in the state of the job.

        A process may learn that all agree, and die before another one does: its step dies with it, and is made
        again by others. So the last step of one that was killed counts only where no other made that step.
        """
        killed = {round_ for _, _, round_ in self.kills}
        found: list[dict[str, Any]] = []
        last: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("log-*")):
            texts = [text for text in path.read_text().splitlines() if text.endswith("}")]
            lines = [line for line in map(json.loads, texts) if "digest" in line]
            if lines and lines[-1]["round"] in killed:
                last.append(lines.pop())
            found += lines
        steps = {line["step"] for line in found}
        return found + [line for line in last if line["step"] not in steps]
