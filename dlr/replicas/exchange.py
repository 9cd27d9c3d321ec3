"""Process group of one version across the replica groups: each rank with the same rank of all groups.

A thread creates the process group and waits for its collectives; the training thread waits for that thread,
so that a new version ends its wait at once, whatever is blocked in the network.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from agent.replicas.client import LineStore
from agent.torch_compat import process_groups
from dlr.replicas.agreement import MeetingGroup
from dlr.replicas.patience import LongWaitThread, Patience, wait_for
from dlr.replicas.transfer import TransferGroups, event_on, own_stream

logger = logging.getLogger(__name__)

COLLECTIVE_SECONDS = 7_200.0
"""Time limit of a collective, longer than any patience. A new version, or a dead peer's closed connections,
end it sooner."""
EXIT_SECONDS = 1.0
"""Time for a thread to return from torch at the end of the interpreter."""
POLL_SECONDS = 0.0005
"""Pause between two looks at a GPU's stream."""


class OvertakenError(Exception):
    """There is a newer version, so the wait is obsolete."""


class BrokenError(Exception):
    """The exchange failed, and there is no newer version yet."""


@dataclass
class _Task:
    """A task of the exchange's thread, with its result."""

    act: Callable[[], Any]
    result: Any = None
    is_done: bool = False


@dataclass(frozen=True)
class Seat:
    """Position of this rank in a version."""

    version: int
    rank: int
    """Rank in its own group, and in the other groups."""
    place: int
    """Position of its group among those that take part."""
    size: int
    """Number of groups."""


class Exchange:
    """The process group of one version, from `start` on.

    Args:
        open_store: creates a store connection of that version, for the thread.
        is_overtaken: returns whether there is a newer version.
        changed: notified, under its lock, when something happens that may end a wait.
        patience: limits of long waits for others.
    """

    def __init__(
        self,
        seat: Seat,
        open_store: Callable[[], LineStore],
        device: torch.device,
        is_overtaken: Callable[[], bool],
        changed: threading.Condition,
        patience: Patience,
    ) -> None:
        self.seat = seat
        self._open_store = open_store
        self._device = device
        self._overtaken = is_overtaken
        self._changed = changed
        self._patience = patience
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._stores: list[LineStore] = []
        """Stores of the groups, kept alive because C++ calls their Python methods."""
        self._control: Any = None
        """Gloo group, for meetings and votes."""
        self._data: Any = None
        """Group for gradients: the same one, or NCCL's."""
        self._streams: dict[torch.device, Any] = {}
        self._connections = weakref.WeakSet[TransferGroups]()
        """Connections for transfers of states."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="dlr-replicas", daemon=True)

    @property
    def is_overtaken(self) -> bool:
        """Whether there is a newer version."""
        return self._overtaken()

    def start(self) -> None:
        """Begin to connect to the others, if there are any."""
        if self.seat.size > 1:
            self._tasks.put(_Task(self._connect))
            self._thread.start()

    # --- for the training thread -------------------------------------------------------------------------

    def meet(self, member: MeetingGroup) -> list[MeetingGroup]:
        """Exchange the groups' states, and return all groups', in their order.

        Raises:
            OvertakenError, BrokenError: the others cannot be reached.
        """
        mine = torch.tensor(member.to_numbers(), dtype=torch.int64, device="cpu")
        if self.seat.size == 1:
            return [member]
        all_ = [torch.zeros_like(mine) for _ in range(self.seat.size)]

        def gather() -> list[MeetingGroup]:
            self._control.allgather([all_], [mine]).wait()
            return [MeetingGroup.of_numbers(each.tolist()) for each in all_]

        met: list[MeetingGroup] = self._finish(self._put(gather))
        return met

    def send(self, flat: Tensor) -> Any:
        """Begin to sum a tensor over the groups, in place; return a handle for `wait`."""
        if self.seat.size == 1:
            return _Task(lambda: None, is_done=True)
        ready = event_on(flat.device)

        def reduce() -> Any:
            """Sum the tensor, or, on a GPU, enqueue the sum and return its event."""
            if ready is None:
                self._data.allreduce([flat]).wait()
                return None
            stream = self._stream_on(flat.device)
            with torch.cuda.device(flat.device), torch.cuda.stream(stream):
                stream.wait_event(ready)
                flat.record_stream(stream)
                process_groups.follow(self._data.allreduce([flat]))
                return stream.record_event()

        return self._put(reduce)

    def wait(self, sent: Sequence[Any]) -> None:
        """Wait for sums.

        Args:
            sent: handles from `send`.

        Raises:
            OvertakenError, BrokenError: the sums do not arrive.
        """
        events = [event for task in sent if (event := self._finish(task)) is not None]
        if events:
            self._finish(self._put(lambda: self._poll(events)))

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Wait for other groups.

        Args:
            is_over: condition to wait for; called under the lock of `changed`.

        Raises:
            OvertakenError, BrokenError: the wait ends without the condition.
        """

        def ends() -> bool:
            return is_over() or self.is_overtaken or self._error is not None

        seat = self.seat
        wait_for(
            self._changed,
            ends,
            lambda: LongWaitThread(seat.place, seat.size, self._open_store, self._patience),
        )
        if is_over():
            return
        if self.is_overtaken:
            raise OvertakenError
        raise BrokenError(f"version {seat.version}: {self._error}") from self._error

    def vote(self, *, ends: bool = False) -> bool:
        """Wait until all groups report that they have all gradients of this step.

        Args:
            ends: whether this group wants to end training with the step.

        Returns:
            whether any group wants to.

        Raises:
            OvertakenError, BrokenError: not all groups have reported, as far as this one can see.
        """
        if self.seat.size == 1:
            return ends
        votes = torch.tensor([int(ends)], dtype=torch.int32, device="cpu")
        self._finish(self._put(lambda: self._control.allreduce([votes]).wait()))
        return bool(votes[0])

    def close(self) -> None:
        """Abort the process groups, each in a thread of its own, without waiting."""
        self._tasks.put(None)
        with self._changed:
            self._is_closed = True
            of_states = [group for connection in self._connections for group in connection.groups]
        groups = {id(each): each for each in (self._data, self._control, *of_states) if each is not None}
        for group in groups.values():
            threading.Thread(target=_abort, args=(group,), name="dlr-replicas-end", daemon=True).start()

    def connect(self, places: Sequence[int]) -> TransferGroups:
        """Connect to some of the groups, for a transfer of a state beside the gradients.

        Args:
            places: positions of these groups, including this one's; the first sends.

        Raises:
            RuntimeError: a group does not connect.
            OvertakenError: this exchange is closed.
        """
        rank = places.index(self.seat.place)
        connection = TransferGroups(*self._groups(f"{self.seat.rank}/state", rank, len(places)))
        with self._changed:
            if self._is_closed:
                raise OvertakenError
            self._connections.add(connection)
        return connection

    # --- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with own_stream(self._device):
                self._do_tasks()
        except Exception as error:  # a failed GPU has no stream
            self._fail(error)

    def _do_tasks(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._error is not None:
                continue  # until `close`
            try:
                task.result = task.act()
            except Exception as error:  # torch raises RuntimeErrors of many kinds, and the store its own
                self._fail(error)
                continue
            with self._changed:
                task.is_done = True
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error.with_traceback(None)  # the traceback's frames would keep the sockets open
            self._changed.notify_all()

    def _connect(self) -> None:
        seat = self.seat
        self._control, self._data = self._groups(f"{seat.rank}", seat.place, seat.size)

    def _groups(self, prefix: str, rank: int, size: int) -> tuple[Any, Any]:
        """Create a gloo group, and the group for tensors on the device: the same one, or NCCL's."""
        opened = self._open_store()
        self._stores.append(opened)
        store = PrefixStore(prefix, opened)
        with _ended_at_exit(opened):
            control = process_groups.gloo(PrefixStore("control", store), rank, size, COLLECTIVE_SECONDS)
            if self._device.type != "cuda":
                return control, control
            data = PrefixStore("data", store)
            return control, process_groups.nccl(data, rank, size, COLLECTIVE_SECONDS, self._device)

    def _poll(self, events: Sequence[Any]) -> None:
        """Wait for events on a GPU until there is a newer version; after a peer's death they never occur."""
        for event in events:
            while not event.query():
                if self.is_overtaken:
                    raise OvertakenError
                time.sleep(POLL_SECONDS)

    def _stream_on(self, device: torch.device) -> Any:
        """Return this version's stream on a device, for its sums."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    def _put(self, act: Callable[[], Any]) -> _Task:
        task = _Task(act)
        self._tasks.put(task)
        return task

    def _finish(self, task: _Task) -> Any:
        self.wait_until(lambda: task.is_done)
        return task.result


@contextmanager
def _ended_at_exit(store: LineStore) -> Iterator[None]:
    """End a store's calls when the interpreter ends, since C++ that calls Python then would crash."""
    has_left = threading.Event()

    def end() -> None:
        store.end()
        has_left.wait(EXIT_SECONDS)

    atexit.register(end)
    try:
        yield
    finally:
        has_left.set()
        atexit.unregister(end)


def _abort(group: Any) -> None:
    try:
        group.abort()
    except Exception as error:  # the group is abandoned anyway
        logger.debug("a process group of an earlier version could not be ended: %s", error)
