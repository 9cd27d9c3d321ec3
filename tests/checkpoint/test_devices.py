"""Threads begin on GPU 0: each call of CUDA's runtime is made on the GPU that the state is on, by a false CUDA."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlr.checkpoint.cuda import GpuCopies
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
    slots: Any = Memory(), Memory()
    tensor: Any = SimpleNamespace(device=OWN, is_cuda=True, record_stream=cuda.nothing)
    view: Any = SimpleNamespace(copy_=lambda *_, **__: cuda.call())
    copies = GpuCopies()
    copies.prepare(slots[0], OWN.index)
    copies.begin(slots[1], [(view, tensor)], [])
    copies.finish()
    copies.close()
    assert cuda.contexts == {OWN.index} and cuda.current == 0


def test_the_threads_of_replica_groups_use_their_own_gpu(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def exchange() -> Exchange:
        none: Any = None
        return Exchange(Seat(1, 0, 0, 2), none, OWN, lambda: False, threading.Condition(), none)

    (made := exchange())._tasks.put(None)
    made._run()
    assert cuda.current == OWN.index
    cuda.current = 0
    made = exchange()
    monkeypatch.setattr(made, "_groups", lambda *_: (None, None))
    made.connect((0, 1))
    assert cuda.current == OWN.index
