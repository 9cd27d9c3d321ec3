"""One version's process group across the groups: for each rank, with the same rank of all that take part.

A thread makes the group and waits for its collectives; the training thread waits for that thread, so that the
news of another version ends its wait at once, whatever is blocked in the network.
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
"""Time limit of a collective, longer than any patience. The news of the next version, or a dead peer's closed
connections, end it sooner."""
EXIT_SECONDS = 1.0
"""Time that the end of the interpreter leaves a thread to get out of torch."""
POLL_SECONDS = 0.0005
"""Between two looks at a GPU's stream."""


class OvertakenError(Exception):
    """A newer version is there, so what was waited for does not matter any more."""


class BrokenError(Exception):
    """The exchange failed, and no newer version is there yet."""


@dataclass
class _Task:
    """What the exchange's thread does next, and what came of it."""

    act: Callable[[], Any]
    result: Any = None
    is_done: bool = False


@dataclass(frozen=True)
class Seat:
    """This rank's place in a version."""

    version: int
    rank: int
    """Its rank in its own group, of which there is one in each."""
    place: int
    """Its group's among those that take part."""
    size: int
    """Number of groups."""


class Exchange:
    """The group of one version, from `start` on.

    Args:
        open_store: makes a store connection of that version, for the thread.
        is_overtaken: whether a newer version is there.
        changed: is notified, under its lock, when something that a wait ends with has happened.
        patience: what follows from a long wait for others.
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
        """Stores of the groups: C++ finds the methods of a Python store only while its object is there."""
        self._control: Any = None
        """A gloo group, for meetings and votes."""
        self._data: Any = None
        """The group for gradients: the same one, or NCCL's."""
        self._streams: dict[torch.device, Any] = {}
        self._connections = weakref.WeakSet[TransferGroups]()
        """For states that are on their way."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="dlr-replicas", daemon=True)

    @property
    def is_overtaken(self) -> bool:
        """Whether a newer version is there."""
        return self._overtaken()

    def start(self) -> None:
        """Begin to connect to the others, if there are any."""
        if self.seat.size > 1:
            self._tasks.put(_Task(self._connect))
            self._thread.start()

    # --- what the training thread asks for ---------------------------------------------------------------

    def meet(self, member: MeetingGroup) -> list[MeetingGroup]:
        """Tell the others where this group is, and return all groups', in their order.

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
        """Begin to sum a tensor over the groups, in place; return what `wait` takes."""
        if self.seat.size == 1:
            return _Task(lambda: None, is_done=True)
        ready = event_on(flat.device)

        def reduce() -> Any:
            """Enqueue it; on a GPU, return an event behind it."""
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
        """Wait until all that was sent is there.

        Raises:
            OvertakenError, BrokenError: it does not come.
        """
        events = [event for task in sent if (event := self._finish(task)) is not None]
        if events:
            self._finish(self._put(lambda: self._poll(events)))

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Wait for other groups.

        Args:
            is_over: is called under the lock of `changed`.

        Raises:
            OvertakenError, BrokenError: it ends otherwise.
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
        """Wait until all groups report that their gradients of this step are there.

        Args:
            ends: whether this one has training end with the step.

        Returns:
            Whether any group has it end.

        Raises:
            OvertakenError, BrokenError: not all have, as far as this one can say.
        """
        if self.seat.size == 1:
            return ends
        votes = torch.tensor([int(ends)], dtype=torch.int32, device="cpu")
        self._finish(self._put(lambda: self._control.allreduce([votes]).wait()))
        return bool(votes[0])

    def close(self) -> None:
        """End it. What it still waits for is left to a thread."""
        self._tasks.put(None)
        with self._changed:
            self._is_closed = True
            of_states = [group for connection in self._connections for group in connection.groups]
        groups = {id(each): each for each in (self._data, self._control, *of_states) if each is not None}
        for group in groups.values():
            threading.Thread(target=_abort, args=(group,), name="dlr-replicas-end", daemon=True).start()

    def connect(self, places: Sequence[int]) -> TransferGroups:
        """Connect to some of the groups alone, for a state that travels beside the gradients.

        Args:
            places: of them, this one's among them; the first sends.

        Raises:
            RuntimeError: one does not come.
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
        except Exception as error:  # a GPU that has failed gives no stream
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
            self._error = error.with_traceback(None)  # whose frames would keep the sockets open
            self._changed.notify_all()

    def _connect(self) -> None:
        seat = self.seat
        self._control, self._data = self._groups(f"{seat.rank}", seat.place, seat.size)

    def _groups(self, prefix: str, rank: int, size: int) -> tuple[Any, Any]:
        """Make a gloo group, and the one for tensors on the device: the same one, or NCCL's."""
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
        """Wait for a GPU as long as no newer version is there: one whose peer died never comes to an end."""
        for event in events:
            while not event.query():
                if self.is_overtaken:
                    raise OvertakenError
                time.sleep(POLL_SECONDS)

    def _stream_on(self, device: torch.device) -> Any:
        """Return the stream of a device that this version's sums wait in."""
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
    """End a store's calls when the interpreter ends: C++ that waits for Python then would crash."""
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
    except Exception as error:  # it is given up anyway
        logger.debug("a process group of an earlier version could not be ended: %s", error)
