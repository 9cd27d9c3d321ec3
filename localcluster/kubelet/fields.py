"""The downward API: a Pod's own fields."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from localcluster.kubelet.errors import ConfigError
from localcluster.kubelet.status import HOST_ADDRESS
from localcluster.quantities import parse_quantity
from localcluster.resource import JSON

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def field_value(pod: JSON, path: str, address: str) -> str:
    """The text of a fieldRef."""
    metadata, spec = pod["metadata"], pod["spec"]
    if subscript := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(subscript[1]) or {}).get(subscript[2], ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(metadata[path.removeprefix("metadata.")])
        case "metadata.labels" | "metadata.annotations":
            entries = metadata.get(path.removeprefix("metadata.")) or {}
            return "\n".join(f'{key}="{_escaped(value)}"' for key, value in sorted(entries.items()))
        case "spec.nodeName":
            return str(spec["nodeName"])
        case "spec.serviceAccountName":
            return str(spec.get("serviceAccountName") or "default")
        case "status.podIP" | "status.podIPs":
            return address
        case "status.hostIP" | "status.hostIPs":
            return HOST_ADDRESS
        case _:
            raise ConfigError(f"fieldRef {path} is not one that a Pod can ask for")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_value(pod: JSON, container: JSON, reference: JSON, allocatable: JSON) -> str:
    """The number of a resourceFieldRef. A limit that is not set is all that the node has."""
    if name := reference.get("containerName"):
        everyone = (pod["spec"].get("initContainers") or []) + pod["spec"]["containers"]
        container = next((each for each in everyone if each["name"] == name), container)
    kind, _, resource = str(reference["resource"]).partition(".")
    resources = container.get("resources") or {}
    amount = (resources.get(kind) or {}).get(resource)
    if amount is None:
        amount = allocatable.get(resource, "0") if kind == "limits" else "0"
    divisor = parse_quantity(str(reference.get("divisor") or "1")) or Decimal(1)
    quotient = parse_quantity(str(amount)) / divisor
    return str(quotient.to_integral_value(ROUND_CEILING))
