"""The network interface of the training processes: that on which rank 0's agent is reached."""

from __future__ import annotations

import ipaddress

import pytest

from agent import network
from agent.network import SocketInterfaces, interface_of, path_to
from crds.agent_report import Network
from crds.names import ENV_NETWORK_INTERFACES

pytestmark = pytest.mark.real

ON = {ENV_NETWORK_INTERFACES: "auto"}


def test_loopback_addresses_are_on_the_loopback_interface() -> None:
    assert interface_of(ipaddress.ip_address("127.0.0.9")) == "lo"
    assert path_to("127.0.0.9", "127.0.0.1") == Network("lo", "127.0.0.1")
    assert path_to("127.0.0.9", "127.0.0.9") == Network("lo", "127.0.0.9"), "rank 0 itself"


@pytest.mark.parametrize("peer", ["203.0.113.7.invalid", "not an address"])
def test_a_peer_that_nobody_knows_leaves_the_choice_to_gloo_and_nccl(peer: str) -> None:
    environ = dict(ON)
    interfaces = SocketInterfaces(environ)
    interfaces.choose("127.0.0.1", "127.0.0.1")
    assert environ == ON | {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    interfaces.choose(peer, "127.0.0.1")
    assert environ == ON and interfaces.to_status() is None


def test_what_the_user_has_set_stays() -> None:
    environ = ON | {"NCCL_SOCKET_IFNAME": "ib0"}
    SocketInterfaces(environ).choose("127.0.0.1", "127.0.0.1")
    assert (environ["GLOO_SOCKET_IFNAME"], environ["NCCL_SOCKET_IFNAME"]) == ("lo", "ib0")


def test_who_has_the_address_counts_and_then_the_narrowest_network(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [("eth0", "10.1.0.7/8"), ("eth1", "10.1.0.2/16"), ("eth2", "fd00::2/64")]
    monkeypatch.setattr(network, "_interfaces", lambda: ((n, ipaddress.ip_interface(a)) for n, a in there))
    expected = {
        "10.1.0.7": "eth0",
        "10.1.0.1": "eth1",
        "10.2.0.1": "eth0",
        "fd00::1": "eth2",
        "1.1.1.1": None,
    }
    assert {a: interface_of(ipaddress.ip_address(a)) for a in expected} == expected
