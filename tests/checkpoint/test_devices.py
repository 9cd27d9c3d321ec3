"""Threads beside training, by a false CUDA: each calls it on the GPU that the state is on, and none spoils a capture."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlr.checkpoint.cuda import GpuCopies
from dlr.replicas import transfer
from dlr.replicas.exchange import Exchange, Seat

OWN = torch.device("cuda:1")


class Cuda:
    """A runtime whose calls make a context on the current GPU."""

    def __init__(self) -> None:
        self.current = 0
        self.contexts: set[int] = set()

    def call(self, *_: Any) -> int:
        self.contexts.add(self.current)
        return 0

    @contextlib.contextmanager
    def on(self, device: Any) -> Iterator[None]:
        before, self.current = (
            self.current,
            torch.device(device).index if not isinstance(device, int) else device,
        )
        yield
        self.current = before

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before = self.current
        with self.on(stream.device):
            yield
        assert self.current == before
        self.call()  # it goes back to the stream of the GPU that was current

    def new_stream(self, device: Any) -> Any:
        event = SimpleNamespace(synchronize=self.call)
        return SimpleNamespace(
            device=device, wait_stream=self.nothing, wait_event=self.nothing, record_event=lambda: event
        )

    def nothing(self, *_: Any, **__: Any) -> None:
        pass


class Memory:
    """A slot."""

    def whole(self) -> torch.Tensor:
        return torch.empty(8, dtype=torch.uint8)

    def map_pages(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    runtime = SimpleNamespace(cudaHostRegister=made.call, cudaHostUnregister=made.call)
    for name, value in {
        "device": made.on,
        "stream": made.stream,
        "Stream": made.new_stream,
        "current_stream": made.new_stream,
        "cudart": lambda: runtime,
        "is_initialized": lambda: True,
        "current_device": lambda: made.current,
        "set_device": lambda device: setattr(made, "current", device.index),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return made


def test_a_save_makes_a_context_on_no_other_gpu(cuda: Cuda) -> None:
    slot: Any = Memory()
    tensor: Any = SimpleNamespace(device=OWN, is_cuda=True, record_stream=cuda.nothing)
    view: Any = SimpleNamespace(copy_=lambda *_, **__: cuda.call())
    copies = GpuCopies()
    for _ in range(2):  # the slot is registered by the first, as tests/gpu finds
        copies.begin(slot, [(view, tensor)], [])
    copies.finish()
    copies.close()
    assert cuda.contexts == {OWN.index} and cuda.current == 0


def test_the_threads_of_replica_groups_use_their_own_gpu_and_spoil_no_capture(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []
    is_relaxed = False

    @contextlib.contextmanager
    def relaxed() -> Iterator[None]:
        nonlocal is_relaxed
        is_relaxed = True
        yield
        is_relaxed = False

    def note(*_: Any) -> Any:
        seen.append((cuda.current, is_relaxed))

    monkeypatch.setattr(transfer, "beside_captures", relaxed)
    none: Any = None
    made = Exchange(Seat(1, 0, 0, 2), none, OWN, lambda: False, threading.Condition(), none)
    made._put(note), made._tasks.put(None)
    made._run()
    transfer.Transfer(note, note, note, OWN).run()
    assert seen == [(OWN.index, True)] * 3 + [(0, False)], "connected, sent, and over"


def test_buckets_are_enqueued_one_behind_the_other(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `wait` of a group without a watchdog keeps the host waiting for each."""
    order: list[str] = []

    class Work:
        def get_future(self) -> Any:
            return SimpleNamespace(wait=lambda: order.append("the stream waits"))

        def wait(self) -> None:
            order.append("the host waits")

    none: Any = None
    made = Exchange(Seat(1, 0, 0, 2), none, OWN, lambda: False, threading.Condition(), none)
    made._data = SimpleNamespace(allreduce=lambda _: Work())
    event = SimpleNamespace(query=lambda: order.append("polled") or True)
    stream = SimpleNamespace(device=OWN, wait_event=cuda.nothing, record_event=lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    made._streams[OWN] = stream
    flat: Any = SimpleNamespace(device=OWN, record_stream=cuda.nothing)
    sent = [made.send(flat), made.send(flat)]
    made._tasks.put(None)
    made._run()
    made._poll([task.result for task in sent])
    assert order == ["the stream waits", "the stream waits", "polled", "polled"]


@pytest.mark.parametrize(("free", "place"), [(2_000, "cuda"), (1_999, "cpu")])
def test_a_state_is_received_on_a_gpu_where_training_has_room_beside_it(
    free: int, place: str, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same GPU a step goes on meanwhile, which may not fail for want of memory."""
    found: list[str] = []

    def empty(nbytes: int, *, dtype: Any, device: Any) -> torch.Tensor:
        found.append(torch.device(device).type)
        return torch.zeros(0)

    monkeypatch.setattr(torch, "empty", empty)
    for name, value in {
        "mem_get_info": lambda _: (free - 500, 80_000),
        "memory_reserved": lambda _: 1_500,
        "memory_allocated": lambda _: 1_000,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "empty_like", lambda piece, *, device: piece.clone())
    connection: Any = SimpleNamespace(broadcast=cuda.nothing)
    transfer.Incoming(OWN)._receive_bytes(connection, 1_000, "cuda")
    assert found == [place]
