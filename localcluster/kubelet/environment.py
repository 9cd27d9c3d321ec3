"""A container's environment and command line, from its description: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from localcluster.kubelet.errors import ConfigError
from localcluster.kubelet.fields import field_value, resource_value
from localcluster.kubelet.sources import Source, SourceKind, Sources
from localcluster.resource import JSON

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_VARIABLE_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


@dataclass(frozen=True)
class Surroundings:
    """The Pod, node and cluster against which a container's description is resolved."""

    pod: JSON
    address: str
    sources: Sources
    allocatable: JSON
    """The node's allocatable resources, for resourceFieldRef."""
    provided: Mapping[str, str] = field(default_factory=dict)
    """Variables that the cluster sets in every container; `env` may refer to them and override them."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` is replaced where NAME is known, `$$` stands for a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def container_environment(container: JSON, around: Surroundings) -> dict[str, str]:
    """envFrom in order, then env in order, each overriding what came before."""
    variables = dict(around.provided)
    for entry in container.get("envFrom") or ():
        variables |= _all_of(entry, around)
    for entry in container.get("env") or ():
        value = _value(entry, container, around, variables)
        if value is not None:
            variables[entry["name"]] = value
    return variables


def command_line(container: JSON, variables: Mapping[str, str]) -> list[str]:
    """Images are ignored, so their entry points are too: command and args say all there is."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not words:
        raise ConfigError(
            f'container "{container["name"]}" has no command: the embedded cluster ignores images '
            "and runs commands on the host, so say one"
        )
    return [expand(word, variables) for word in words]


def _all_of(entry: JSON, around: Surroundings) -> dict[str, str]:
    kind, field_name = (
        (SourceKind.CONFIG_MAP, "configMapRef")
        if "configMapRef" in entry
        else (SourceKind.SECRET, "secretRef")
    )
    reference = entry[field_name]
    content = _content(Source(kind, reference["name"]), reference, around)
    prefix = entry.get("prefix", "")
    return {
        prefix + key: value.decode(errors="replace")
        for key, value in (content or {}).items()
        if _VARIABLE_NAME.fullmatch(prefix + key)
    }


def _value(entry: JSON, container: JSON, around: Surroundings, variables: Mapping[str, str]) -> str | None:
    value_from = entry.get("valueFrom")
    if not value_from:
        return expand(entry.get("value") or "", variables)
    if "fieldRef" in value_from:
        return field_value(around.pod, value_from["fieldRef"]["fieldPath"], around.address)
    if "resourceFieldRef" in value_from:
        return resource_value(around.pod, container, value_from["resourceFieldRef"], around.allocatable)
    if "configMapKeyRef" in value_from:
        return _key(SourceKind.CONFIG_MAP, value_from["configMapKeyRef"], around)
    if "secretKeyRef" in value_from:
        return _key(SourceKind.SECRET, value_from["secretKeyRef"], around)
    raise ConfigError(f"env {entry['name']}: valueFrom {next(iter(value_from))} is not supported here")


def _key(kind: SourceKind, reference: JSON, around: Surroundings) -> str | None:
    content = _content(Source(kind, reference["name"]), reference, around)
    if content is None:
        return None
    if reference["key"] not in content:
        if reference.get("optional"):
            return None
        named = "ConfigMap" if kind is SourceKind.CONFIG_MAP else "Secret"
        namespace = around.pod["metadata"]["namespace"]
        raise ConfigError(f"couldn't find key {reference['key']} in {named} {namespace}/{reference['name']}")
    return content[reference["key"]].decode(errors="replace")


def _content(source: Source, reference: JSON, around: Surroundings) -> dict[str, bytes] | None:
    if source not in around.sources and not reference.get("optional"):
        raise ConfigError(f'{source.kind.value} "{source.name}" not found')
    return around.sources.get(source)
