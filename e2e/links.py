"""A network for each virtual node, so that the link between two of them can be cut for real.

The embedded cluster's Pods all share the host's network. Here, every node gets a network namespace; a cable
of two virtual interfaces leads from each to one bridge, and what Pods run in them talks over these alone. It
needs root.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from localcluster.kubelet.namespaces import setns

CLONE_NEWNET = 0x40000000
NAMESPACES = Path("/run/netns")
INTERFACES = Path("/sys/class/net")
OURS = re.compile(r"dlr(\d+)(-.*)?")
"""Names of network namespaces and bridges, with the pid of the process that made them."""
INTERFACE = "eth0"
NOBODY = "02:00:00:00:00:00"
"""A hardware address that no interface has: what is sent there is lost without a word, as on a cut cable."""
COMMAND_SECONDS = 60.0
COPY_BYTES = 64 * 1024

Address = tuple[str, int]


def can_be_had() -> bool:
    """Whether this process may make network namespaces, by making one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"dlr-{uuid4().hex[:8]}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return False
    _ip("netns", "delete", name)
    return True


class NodeNetworks:
    """The nodes' networks, for as long as the context lasts."""

    def __init__(self, nodes: Sequence[str], api_server: Address) -> None:
        self._id = f"dlr{os.getpid()}"
        self._addresses = {node: f"10.99.0.{number}" for number, node in enumerate(nodes, start=1)}
        self._api_server = api_server
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        _sweep()
        try:
            self._build()
        except BaseException:
            self._ending.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    def command(self, *words: str) -> list[str]:
        """A container's command line that runs `words` in the network of the node that it finds itself on."""
        cases = "".join(f"{node}) address={address};; " for node, address in self._addresses.items())
        script = (
            f'case "$DLR_NODE_NAME" in {cases}esac; '
            f'exec ip netns exec {self._id}-"$DLR_NODE_NAME" '
            f'env POD_IP="$address" "$@"'
        )
        return ["sh", "-c", script, "sh", *words]

    def cut(self, a: str, b: str) -> None:
        """Cut the link between these two; both still reach all others."""
        for node, other in ((a, b), (b, a)):
            nobody = ("lladdr", NOBODY, "dev", INTERFACE, "nud", "permanent")
            _ip("-n", self._namespace(node), "neighbour", "replace", self._addresses[other], *nobody)

    def silence(self, node: str) -> None:
        """Cut a node off from all others: nothing that is sent to it, or by it, arrives."""
        _ip("-n", self._namespace(node), "link", "set", INTERFACE, "down")

    def _namespace(self, node: str) -> str:
        return f"{self._id}-{node}"

    def _build(self) -> None:
        bridge = self._id
        _ip("link", "add", bridge, "type", "bridge")
        self._ending.callback(_ip, "link", "delete", bridge)
        _ip("link", "set", bridge, "up")
        for number, (node, address) in enumerate(self._addresses.items()):
            namespace, cable = self._namespace(node), f"{bridge}.{number}"
            _ip("netns", "add", namespace)
            self._ending.callback(_ip, "netns", "delete", namespace)
            _ip("link", "add", cable, "type", "veth", "peer", "name", INTERFACE, "netns", namespace)
            # With its namespace alone it would go a while later, and its name would not be free for the next.
            self._ending.callback(_ip, "link", "delete", cable)
            _ip("link", "set", cable, "master", bridge, "up")
            _ip("-n", namespace, "address", "add", f"{address}/24", "dev", INTERFACE)
            _ip("-n", namespace, "link", "set", INTERFACE, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
        forwarder = Forwarder(self._api_server)
        self._ending.callback(forwarder.close)
        for node in self._addresses:
            forwarder.listen_in(self._namespace(node))


class Forwarder:
    """Makes one of the host's loopback addresses reachable in other network namespaces too."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def listen_in(self, namespace: str) -> None:
        with ThreadPoolExecutor(1) as thread:  # of its own, to leave there
            listener = thread.submit(_listener, namespace, self._address).result()
        serving = asyncio.start_server(self._forward, sock=listener)
        self._servers.append(asyncio.run_coroutine_threadsafe(serving, self._loop).result())

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for server in self._servers:
            server.close()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):  # Python 3.11 logs a cancelled connection as a defect
            far_reader, far_writer = await asyncio.open_connection(*self._address)
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(COPY_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


def _listener(namespace: str, address: Address) -> socket.socket:
    """Takes the calling thread to the namespace for good: a socket stays where its thread was."""
    with (NAMESPACES / namespace).open() as file:
        setns(file.fileno(), CLONE_NEWNET)
    return socket.create_server(address)


def _sweep() -> None:
    """Remove what processes that were killed have left. The cables go with either of their ends."""
    for made, delete in ((NAMESPACES, ("netns", "delete")), (INTERFACES, ("link", "delete"))):
        for entry in made.glob("dlr*"):
            owner = OURS.fullmatch(entry.name)
            if owner and not Path("/proc", owner[1]).exists():
                _ip(*delete, entry.name)


def _ip(*arguments: str) -> None:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
