"""NCCL groups that are made and ended beside the default one, through the death of a peer."""

from __future__ import annotations

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
from dlr.replicas.transfer import Connection as StateConnection
from dlr.replicas.transfer import own_stream

WATCHDOG_SECONDS = 75.0
"""Longer than a watchdog with torch's own settings waits until it ends its process."""


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


def reduce_with_a_peer_that_dies(pipe: Connection, rank: int, port: int, delay_seconds: float) -> None:
    os.environ["NCCL_HOSTID"] = f"host-{rank}"  # two ranks on one GPU
    torch.cuda.set_device(0)
    store = store_of(port, 2, is_master=rank == 0)
    group = process_groups.nccl(dist.PrefixStore("data", store), rank, 2, 7_200.0)
    flat = torch.ones(1 << 20, device="cuda")
    group.allreduce([flat]).wait()
    torch.cuda.synchronize()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    pipe.send("met")
    group.allreduce([flat])  # whose peer is dead
    time.sleep(1 + delay_seconds)
    process_groups.abort(group)
    pipe.send("aborted")
    time.sleep(WATCHDOG_SECONDS)
    other = torch.ones(4, device="cuda").sum()
    pipe.send(float(other))


@pytest.mark.parametrize("delay_seconds", [0.25])
def test_a_survivor_lives_though_its_watchdog_saw_the_death_before_the_abort(delay_seconds: float) -> None:
    port = free_port()
    survivor, pipe = start(reduce_with_a_peer_that_dies, 0, port, delay_seconds)
    victim, _ = start(reduce_with_a_peer_that_dies, 1, port, delay_seconds)
    assert [pipe.recv(), pipe.recv(), pipe.recv()] == ["met", "aborted", 4.0]
    survivor.join()
    victim.join()
    assert survivor.exitcode == 0


def send_a_state_beside_training(pipe: Connection, group: int, rank: int, port: int) -> None:
    os.environ["NCCL_HOSTID"] = f"{group}-{rank}"
    torch.cuda.set_device(0)
    store = store_of(port, 4, is_master=(group, rank) == (0, 0))
    own = process_groups.nccl(dist.PrefixStore(f"own{group}", store), rank, 2, 600.0)
    across = process_groups.nccl(dist.PrefixStore(f"state{rank}", store), group, 2, 600.0)
    gradients, state = torch.ones(1 << 20, device="cuda"), torch.ones(8 << 20, device="cuda")
    own.allreduce([gradients]).wait()
    across.broadcast([state]).wait()
    torch.cuda.synchronize()  # connected

    def send() -> None:
        with own_stream(torch.device("cuda", 0)):
            StateConnection(None, across).broadcast(state)

    sender = threading.Thread(target=send, daemon=True)
    if (group + rank) % 2:  # two ranks begin with the collective, two with the state
        own.allreduce([gradients]).wait()
        time.sleep(0.2)
        sender.start()
    else:
        sender.start()
        time.sleep(0.1)
        own.allreduce([gradients]).wait()
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
