"""Whether any node of the cluster is large enough for one Pod of a job, were it empty. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from crds import names
from reconcilers.observed.quantities import format_bytes, parse

JSON = dict[str, Any]
BYTES = ("memory", "ephemeral-storage")


@dataclass(frozen=True)
class TooLarge:
    """A Pod that no node can take."""

    text: str
    node: str
    """The one that has the most of what is short."""


def too_large(job: JSON, nodes: Sequence[JSON]) -> TooLarge | None:
    """What no node has enough of; None if one is large enough, or no node is known."""
    wanted = _requests(job)
    sizes = {
        node["metadata"]["name"]: _amounts((node.get("status") or {}).get("allocatable")) for node in nodes
    }
    if not sizes or not wanted:
        return None
    if any(all(size.get(name, 0) >= amount for name, amount in wanted.items()) for size in sizes.values()):
        return None
    for name, amount in wanted.items():
        node, size = max(sizes.items(), key=lambda each: each[1].get(name, Fraction(0)))
        if size.get(name, 0) < amount:
            has = _written(name, size.get(name, Fraction(0)))
            text = f"a Pod asks for {_written(name, amount)} of {name}, and the largest node has {has}"
            return TooLarge(text, node)
    asked = ", ".join(f"{_written(name, amount)} of {name}" for name, amount in wanted.items())
    return TooLarge(f"a Pod asks for {asked}, and no node has all of that", min(sizes))


def _requests(job: JSON) -> dict[str, Fraction]:
    """Return the requests of a worker's Pod, all containers; a limit alone is a request, too."""
    spec = job["spec"]["replicaSpecs"].get(names.WORKER) or {}
    total: dict[str, Fraction] = {}
    for container in ((spec.get("template") or {}).get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        for name, amount in _amounts(
            {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        ).items():
            total[name] = total.get(name, Fraction(0)) + amount
    raised = ((job.get("status") or {}).get("resources") or {}).get(names.WORKER) or {}
    return total | _amounts(raised.get("requests"))


def _amounts(said: Mapping[str, Any] | None) -> dict[str, Fraction]:
    return dict(_parsed((said or {}).items()))


def _parsed(said: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Fraction]]:
    for name, quantity in said:
        try:
            yield name, parse(quantity)
        except ValueError:
            continue  # the API server refuses it, and says so


def _written(name: str, amount: Fraction) -> str:
    if name in BYTES and amount.denominator == 1:
        return format_bytes(int(amount))
    return f"{float(amount):g}"
