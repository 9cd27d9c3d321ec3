"""NetworkPolicies as a real API server keeps them. Nothing enforces them: all Pods share this machine."""

from __future__ import annotations

from collections.abc import Iterator

from localcluster.apiserver.errors import forbidden_field, required
from localcluster.resource import JSON

NETWORK_POLICIES = "networkpolicies.networking.k8s.io"
_PEERS = {"ingress": "from", "egress": "to"}


def completed(obj: JSON) -> JSON:
    """The policy with its default types: ingress, and egress where it has rules for that."""
    spec = obj.get("spec")
    if not isinstance(spec, dict) or spec.get("policyTypes"):
        return obj
    types = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    return obj | {"spec": spec | {"policyTypes": types}}


def faults(obj: JSON) -> list[JSON]:
    """What the schema cannot say of a policy's peers."""
    return list(_peer_faults(obj.get("spec") or {}))


def _peer_faults(spec: JSON) -> Iterator[JSON]:
    for direction, peers in _PEERS.items():
        for index, rule in enumerate(spec.get(direction) or ()):
            for number, peer in enumerate(rule.get(peers) or ()):
                path = f"spec.{direction}[{index}].{peers}[{number}]"
                if not peer:
                    yield required(path, "must specify a peer")
                elif "ipBlock" in peer and len(peer) > 1:
                    yield forbidden_field(path, "may not specify both ipBlock and another peer")
