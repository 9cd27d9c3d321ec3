"""NCCL groups that are made and ended beside the default one, through the death of a peer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agent.torch_compat import process_groups
from dlr.replicas.transfer import TransferGroups as StateConnection
from dlr.replicas.transfer import own_stream

DUMP_SECONDS, HEARTBEAT_SECONDS = 1, 5
"""After four times the first a watchdog ends its process, and after the second the default group's monitor."""
WATCHDOG_SECONDS = 30.0
"""Longer than both take, stacks of C++ that they write included."""


def start(target: Callable[..., None], *args: Any) -> tuple[BaseProcess, Connection]:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *args), daemon=True)
    process.start()
    there.close()
    return process, here


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def store_of(port: int, size: int, *, is_master: bool) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, size, is_master=is_master, wait_for_workers=False)


def nccl(store: dist.Store, rank: int, size: int) -> Any:
    return process_groups.nccl(store, rank, size, 7_200.0, torch.device("cuda", 0))


def reduce_with_a_peer_that_dies(pipe: Connection, rank: int, port: int, delay_seconds: float) -> None:
    os.environ["NCCL_HOSTID"] = f"host-{rank}"  # two ranks on one GPU
    torch.cuda.set_device(0)
    store = store_of(port, 2, is_master=rank == 0)
    os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = str(HEARTBEAT_SECONDS)
    os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = str(1_000 * DUMP_SECONDS)
    dist.init_process_group("nccl", store=dist.PrefixStore(f"own{rank}", store), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1, device="cuda"))
    group = nccl(dist.PrefixStore("data", store), rank, 2)
    flat = torch.ones(1 << 20, device="cuda")
    process_groups.follow(group.allreduce([flat]))
    torch.cuda.synchronize()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    pipe.send("met")
    with contextlib.suppress(dist.DistBackendError):
        group.allreduce([flat])  # whose peer is dead
    time.sleep(1 + delay_seconds)
    group.abort()
    pipe.send("aborted")
    del group  # whose destructor has no thread to wait for
    pipe.send("destroyed")
    time.sleep(WATCHDOG_SECONDS)
    dist.all_reduce(other := torch.full((1,), 4.0, device="cuda"))
    pipe.send(float(other))


@pytest.mark.parametrize("delay_seconds", [0.25])
def test_a_survivor_and_its_default_group_live_though_the_abort_comes_late(delay_seconds: float) -> None:
    port = free_port()
    survivor, pipe = start(reduce_with_a_peer_that_dies, 0, port, delay_seconds)
    victim, _ = start(reduce_with_a_peer_that_dies, 1, port, delay_seconds)
    assert [pipe.recv() for _ in range(4)] == ["met", "aborted", "destroyed", 4.0]
    survivor.join()
    victim.join()
    assert survivor.exitcode == 0


def send_a_state_beside_training(pipe: Connection, group: int, rank: int, port: int) -> None:
    os.environ["NCCL_HOSTID"] = f"{group}-{rank}"
    torch.cuda.set_device(0)
    store = store_of(port, 4, is_master=(group, rank) == (0, 0))
    own = nccl(dist.PrefixStore(f"own{group}", store), rank, 2)
    across = nccl(dist.PrefixStore(f"state{rank}", store), group, 2)
    gradients, state = torch.ones(1 << 20, device="cuda"), torch.ones(8 << 20, device="cuda")
    process_groups.follow(own.allreduce([gradients]))
    process_groups.follow(across.broadcast([state]))
    torch.cuda.synchronize()  # connected

    def send() -> None:
        with own_stream(torch.device("cuda", 0)):
            StateConnection(None, across).broadcast(state)

    sender = threading.Thread(target=send, daemon=True)
    if (group + rank) % 2:  # two ranks begin with the collective, two with the state
        process_groups.follow(own.allreduce([gradients]))
        time.sleep(0.2)
        sender.start()
    else:
        sender.start()
        time.sleep(0.1)
        process_groups.follow(own.allreduce([gradients]))
    sender.join()
    torch.cuda.synchronize()
    pipe.send("done")
    pipe.recv()


def test_a_state_is_sent_whatever_order_ranks_enqueue_it_in() -> None:
    port = free_port()
    ranks = [
        start(send_a_state_beside_training, group, rank, port) for group in range(2) for rank in range(2)
    ]
    assert [pipe.poll(120.0) and pipe.recv() for _, pipe in ranks] == ["done"] * 4
    for process, pipe in ranks:
        pipe.send("end")
        process.join()


def connect_to_a_peer_that_does_not(pipe: Connection, port: int) -> None:
    torch.cuda.set_device(0)
    store = store_of(port, 1, is_master=True)
    group = nccl(dist.PrefixStore("data", store), 0, 2)
    pipe.send("connects")
    group.abort()
    pipe.send("aborted")


def test_an_abort_reaches_a_group_that_still_connects() -> None:
    process, pipe = start(connect_to_a_peer_that_does_not, free_port())
    assert [pipe.poll(60.0) and pipe.recv() for _ in range(2)] == ["connects", "aborted"]
    process.join()
    assert process.exitcode == 0


def capture_beside_polls(pipe: Connection) -> None:
    torch.cuda.set_device(0)
    device, x, is_over = torch.device("cuda", 0), torch.ones(64, device="cuda"), threading.Event()

    def poll() -> None:
        with own_stream(device):
            while not is_over.is_set():
                torch.cuda.current_stream().record_event().query()

    poller = threading.Thread(target=poll)
    poller.start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1_000):
            x.add_(1)
    is_over.set()
    poller.join()
    graph.replay()
    pipe.send(float(x[0]))


def test_a_graph_is_captured_while_other_threads_look_at_events() -> None:
    process, pipe = start(capture_beside_polls)
    assert pipe.poll(60.0) and pipe.recv() == 1_001
    process.join()


def record_collectives(pipe: Connection) -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "100"
    torch.cuda.set_device(0)
    group = nccl(dist.HashStore(), 0, 1)
    for _ in range(50):
        process_groups.follow(group.allreduce([torch.ones(1 << 20, device="cuda")]))
    torch.cuda.synchronize()
    pipe.send(json.loads(torch._C._distributed_c10d._dump_nccl_trace_json())["entries"])


def test_the_recorder_is_asked_for_collectives_that_nobody_holds_any_more() -> None:
    process, pipe = start(record_collectives)
    entries = pipe.recv() if pipe.poll(60.0) else []
    assert [entry["state"] for entry in entries] == ["completed"] * 50
    process.join()
