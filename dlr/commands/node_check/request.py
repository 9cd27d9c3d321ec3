"""What was asked for on the command line, as a NodeCheck. The API server judges what it may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crds import names
from dlr.commands.errors import CouldNotTell

JSON = dict[str, Any]

NAME_PREFIX = "node-check-"


@dataclass(frozen=True)
class Target:
    """What to check. Exactly one of these is given."""

    nodes: tuple[str, ...] = ()
    """Node names; each may be several with commas between."""
    selector: str | None = None
    every_node: bool = False
    job: str | None = None
    local: bool = False

    def require_one(self) -> None:
        """Raises CouldNotTell if not exactly one is given."""
        given = [
            bool(self.nodes),
            self.selector is not None,
            self.every_node,
            self.job is not None,
            self.local,
        ]
        if sum(given) != 1:
            raise CouldNotTell(
                "Say what to check by exactly one of --nodes, --selector, --all, --job and --local."
            )


@dataclass(frozen=True)
class Wishes:
    """How to check it. What is None is left to the API server's defaults."""

    accelerator: str | None = None
    cordon: bool = True
    timeout_seconds: int | None = None
    straggler_ratio: float | None = None
    topology_keys: tuple[str, ...] = ()
    name: str | None = None
    ttl_seconds: int | None = None


def node_check(target: Target, wishes: Wishes) -> JSON:
    """The NodeCheck to be created.

    Raises:
        CouldNotTell: the selector or the list of nodes says something else than it can.
    """
    spec = _subject(target)
    if wishes.accelerator is not None:
        spec["accelerator"] = wishes.accelerator
    if not wishes.cordon:
        spec["cordon"] = False
    if wishes.timeout_seconds is not None:
        spec["timeoutSeconds"] = wishes.timeout_seconds
    if wishes.straggler_ratio is not None:
        spec["stragglerRatio"] = wishes.straggler_ratio
    if wishes.topology_keys:
        spec["topologyKeys"] = list(wishes.topology_keys)
    if wishes.ttl_seconds is not None:
        spec["ttlSecondsAfterFinished"] = wishes.ttl_seconds
    return {
        "apiVersion": names.API_VERSION,
        "kind": "NodeCheck",
        "metadata": {"name": wishes.name} if wishes.name else {"generateName": NAME_PREFIX},
        "spec": spec,
    }


def _subject(target: Target) -> JSON:
    if target.job is not None:
        return {"jobName": target.job}
    if target.every_node:
        return {"nodeSelector": {}}
    if target.selector is not None:
        return {"nodeSelector": _labels(target.selector)}
    return {"nodes": _node_names(target.nodes)}


def _node_names(given: tuple[str, ...]) -> list[str]:
    nodes = [name.strip() for part in given for name in part.split(",")]
    if not all(nodes):
        raise CouldNotTell(f"--nodes {','.join(given)!r} has a node without a name in it.")
    return list(dict.fromkeys(nodes))


def _labels(selector: str) -> dict[str, str]:
    """`a=b,c=d`: a NodeCheck's nodeSelector is a map, as a Pod's is, and says nothing else."""
    labels: dict[str, str] = {}
    if not selector.strip():
        raise CouldNotTell("--selector is empty; every node is --all.")
    for part in selector.split(","):
        key, equals, value = (word.strip() for word in part.replace("==", "=", 1).partition("="))
        if not equals or not key or any(sign in key + value for sign in "=!() "):
            raise CouldNotTell(
                f"--selector {selector!r} is not understood: it takes label=value, and several with commas "
                "between, all of which a node must have."
            )
        if labels.setdefault(key, value) != value:
            raise CouldNotTell(f"--selector {selector!r} asks for two values of the label {key}.")
    return labels
