"""Network interface of the training processes (`elasticPolicy.networkInterfaces: auto`).

Of a node's interfaces only some may reach the other nodes, and Gloo and NCCL may choose a wrong one. The
interface to rank 0's agent works for all members of a world, since it has just carried their meeting. Its
name may differ from node to node, so each agent sets its own.
"""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import socket
import struct
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from crds.agent_report import Network
from crds.names import ENV_NETWORK_INTERFACES

logger = logging.getLogger(__name__)

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
AUTO = "auto"
_ADDRESS, _NETMASK = 0x8915, 0x891B
"""SIOCGIFADDR and SIOCGIFNETMASK (netdevice(7))."""
_IPV6 = Path("/proc/net/if_inet6")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class SocketInterfaces:
    """Sets the variables for the processes of each round; those of the user stay.

    Args:
        environ: environment of this agent, which its processes inherit.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._ours = [name for name in VARIABLES if not environ.get(name)]
        self._is_on = environ.get(ENV_NETWORK_INTERFACES) == AUTO
        self._network: Network | None = None

    def choose(self, peer: str, own: str) -> None:
        """Choose the interface of the next processes.

        Args:
            peer: address of rank 0's agent.
            own: address of this agent.
        """
        if not self._is_on:
            return
        self._network = path_to(peer, own)
        for name in self._ours:
            if self._network is not None:
                self._environ[name] = self._network.interface
            else:
                self._environ.pop(name, None)
        if self._network is None:
            logger.warning("no interface of this Pod was found to reach %s: Gloo and NCCL choose one", peer)

    def to_status(self) -> Network | None:
        """Return the interface of the processes, and its address; None if they choose by themselves."""
        return self._network


def path_to(peer: str, own: str) -> Network | None:
    """Look up the route in the kernel, without sending anything; return None if no interface has the address.

    For rank 0 itself it is its own address, to which the kernel's route is the loopback.
    """
    try:
        local = ipaddress.ip_address(own if peer == own else _source_of(peer))
    except (OSError, ValueError):
        return None
    name = interface_of(local)
    return None if name is None else Network(name, str(local))


def _source_of(peer: str) -> str:
    """Return the source address of packets to a peer."""
    family, _, _, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0]).partition("%")[0]


def interface_of(address: Address) -> str | None:
    """Return the interface with the address, or else with the narrowest network around it."""
    around = (
        (address == found.ip, found.network.prefixlen, name)
        for name, found in _interfaces()
        if address in found.network
    )
    return max(around, default=(False, 0, None))[2]


def _interfaces() -> Iterator[tuple[str, Interface]]:
    """Yield the name of each interface, and its address with the network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                address, mask = (
                    socket.inet_ntoa(fcntl.ioctl(control.fileno(), code, request)[20:24])
                    for code in (_ADDRESS, _NETMASK)
                )
            except OSError:
                continue  # without an address
            yield name, ipaddress.IPv4Interface(f"{address}/{mask}")
    try:
        lines = _IPV6.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        digits, _, prefix, _, _, name = line.split()
        yield name, ipaddress.IPv6Interface((bytes.fromhex(digits), int(prefix, 16)))
