"""Resource quantities, and what a Pod asks for in total."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from functools import cache

from localcluster.resource import JSON

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"

Amounts = dict[str, int]
"""Resource name to amount: cpu in thousandths of a CPU, everything else in units (bytes, devices, Pods)."""

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


@cache
def parse_quantity(text: str) -> Decimal:
    """`500m`, `2`, `1.5Gi`, `1e3`: the number of units."""
    number = text.rstrip("numkKMGTPEi")
    suffix = text[len(number) :]
    if suffix not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a quantity")
    return Decimal(number) * _SUFFIXES[suffix]


def amount(resource: str, quantity: object) -> int:
    """Rounded up, as Kubernetes does, so that nothing is ever counted as less than it is."""
    value = parse_quantity(str(quantity))
    scale = 1000 if resource == CPU else 1
    return int((value * scale).to_integral_value(ROUND_CEILING))


def amounts(quantities: JSON | None) -> Amounts:
    return {resource: amount(resource, quantity) for resource, quantity in (quantities or {}).items()}


def add(left: Amounts, right: Amounts) -> Amounts:
    return {name: left.get(name, 0) + right.get(name, 0) for name in left.keys() | right.keys()}


def largest(left: Amounts, right: Amounts) -> Amounts:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in left.keys() | right.keys()}


def container_requests(container: JSON) -> Amounts:
    """Requests; a limit without a request is one, as the API server defaults it."""
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def memory_limit(container: JSON) -> int | None:
    """Return the limit in bytes."""
    return amounts((container.get("resources") or {}).get("limits")).get(MEMORY)


def is_sidecar(container: JSON) -> bool:
    """An init container that keeps running beside the others."""
    return container.get("restartPolicy") == "Always"


def pod_requests(spec: JSON) -> Amounts:
    """Return what a node must have free: the sum of all containers, or an init container that needs more.

    Sidecars started before an init container run beside it, so they count with it. One Pod is one of `pods`.
    """
    sidecars: Amounts = {}
    initializing: Amounts = {}
    for container in spec.get("initContainers") or ():
        requests = container_requests(container)
        if is_sidecar(container):
            sidecars = add(sidecars, requests)
            initializing = largest(initializing, sidecars)
        else:
            initializing = largest(initializing, add(sidecars, requests))
    running = total(container_requests(container) for container in spec["containers"])
    needed = largest(add(sidecars, running), initializing)
    return add(add(needed, amounts(spec.get("overhead"))), {PODS: 1})


def total(parts: Iterable[Amounts]) -> Amounts:
    combined: Amounts = {}
    for part in parts:
        combined = add(combined, part)
    return combined
