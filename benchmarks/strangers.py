"""What strangers cost a peer: the fetch of a checkpoint from an agent, with and without idle connections.

A server process holds a slot of some size in memory and serves it as an agent does. A client fetches it into
a slot of its own, in turns alone and beside a process of strangers that keep so many connections without a
proof open, each opened again when it is closed. Each fetch is verified, as an agent's is.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import multiprocessing
import socket
import statistics
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import torch

from agent.connection.handshake import connect
from agent.connection.listener import Listener
from agent.slots.format import Mark, Part, lay_out
from agent.slots.pool import Pool
from agent.slots.server import SlotServer
from agent.slots.slot import Slot
from agent.slots.wire import SERVICE, fetch

KEY = bytes(range(32))
MARK = Mark(1, 10, 0, 1)
HOST = "127.0.0.2"
BESIDE = 64 << 20
"""Bytes of a slot beside its tensor, at most."""
LOOK_SECONDS = 0.2


def serve(nbytes: int, pipe: Connection, over: Event) -> None:
    """Hold a slot and serve it until it is over."""
    pool = Pool(nbytes + BESIDE, 1)
    header = lay_out([Part("weights", "uint8", (nbytes,), nbytes)])
    slot = pool.slots[0]
    slot.tensor(header.entries[0]).copy_(torch.arange(nbytes, dtype=torch.int64).to(torch.uint8))
    slot.commit(MARK, header)
    slot.sum_up()
    listener = Listener(HOST, KEY)
    server = SlotServer(pool, listener, lambda _mark, _address: False, lambda _round: [])
    pipe.send(listener.port)
    over.wait()
    server.close()
    listener.close()


def idle(port: int, count: int, active: Event, over: Event) -> None:
    """Keep connections without a proof open while that is asked for."""
    kept: list[socket.socket] = []
    while not over.wait(LOOK_SECONDS):
        wanted = count if active.is_set() else 0
        for connection in [each for each in kept if not wanted or is_closed(each)]:
            kept.remove(connection)
            connection.close()
        with contextlib.suppress(OSError):
            while len(kept) < wanted:
                kept.append(socket.create_connection((HOST, port), 5))


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it. What it has sent is read."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--strangers", type=int, default=500)
    parser.add_argument("--turns", type=int, default=10)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    over, active = context.Event(), context.Event()
    nbytes = args.megabytes * 1_000_000
    server = context.Process(target=serve, args=(nbytes, theirs, over))
    server.start()
    port = ours.recv()
    strangers = context.Process(target=idle, args=(port, args.strangers, active, over))
    strangers.start()
    target = Slot(mmap.mmap(-1, nbytes + BESIDE))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    handshakes: dict[bool, list[float]] = {False: [], True: []}
    fetch(f"{HOST}:{port}", KEY, MARK, target)  # gives the slot its pages
    for _ in range(args.turns):
        for crowded in seconds:
            active.set() if crowded else active.clear()
            time.sleep(5 * LOOK_SECONDS)
            began_at = time.monotonic()
            fetch(f"{HOST}:{port}", KEY, MARK, target)
            seconds[crowded].append(time.monotonic() - began_at)
            began_at = time.monotonic()
            connect(HOST, port, KEY, SERVICE).close()
            handshakes[crowded].append(time.monotonic() - began_at)
    over.set()
    server.join()
    strangers.join()
    print(f"{args.megabytes} MB, {args.turns} fetches each: median (least, most); a connection")
    for crowded, measured in seconds.items():
        beside = f"beside {args.strangers} strangers" if crowded else "alone"
        connecting = statistics.median(handshakes[crowded]) * 1000
        print(
            f"{beside:24} {statistics.median(measured):.3f} s ({min(measured):.3f}, {max(measured):.3f})  "
            f"{connecting:.2f} ms"
        )
    print(f"ratio {statistics.median(seconds[True]) / statistics.median(seconds[False]):.3f}")


if __name__ == "__main__":
    main()
