"""The NodeCheck that the command line asks for. The API server judges what it may say."""

from __future__ import annotations

from collections.abc import Sequence

from crds import names
from dlr.commands.errors import CouldNotTell
from dlr.kube.api import JSON

NAME_PREFIX = "node-check-"


def node_check(name: str | None, spec: JSON) -> JSON:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "NodeCheck",
        "metadata": {"name": name} if name else {"generateName": NAME_PREFIX},
        "spec": spec,
    }


def subject(nodes: Sequence[str], selector: str | None, job: str | None) -> JSON:
    """The fields of the spec that say what to check: every node, unless one of these does.

    Args:
        nodes: node names; each may be several with commas between.

    Raises:
        CouldNotTell: the selector or the list of nodes cannot be meant.
    """
    if job is not None:
        return {"jobName": job}
    if selector is not None:
        return {"nodeSelector": _labels(selector)}
    found = [name.strip() for part in nodes for name in part.split(",")]
    if not all(found):
        raise CouldNotTell(f"--nodes {','.join(nodes)!r} has a node without a name in it.")
    return {"nodes": list(dict.fromkeys(found))} if found else {"nodeSelector": {}}


def _labels(selector: str) -> dict[str, str]:
    """`a=b,c=d`: a NodeCheck's nodeSelector is a map, as a Pod's is."""
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
