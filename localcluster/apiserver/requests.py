"""A request's path and query, read once into plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from urllib.parse import unquote

from localcluster.apiserver.authentication import User
from localcluster.apiserver.errors import bad_request, invalid, invalid_value
from localcluster.resource import JSON, ResourceType


class FieldValidation(Enum):
    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


@dataclass(frozen=True)
class Target:
    """A resource path: `/apis/GROUP/VERSION/namespaces/NAMESPACE/PLURAL/NAME/SUBRESOURCE`."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@lru_cache(maxsize=8192)
def parse_target(raw_path: str) -> Target | None:
    """The resource a path names; None for all other paths (discovery, health and nonsense)."""
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and not _of_namespace_itself(rest):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3 or not all(rest):
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    return Target(group, version, plural, namespace, name, subresource)


def _of_namespace_itself(rest: list[str]) -> bool:
    return len(rest) == 3 and rest[2] in ("status", "finalize")


@dataclass(frozen=True)
class Context:
    """One request for a resource, authenticated. Warnings are gathered while it is answered."""

    user: User
    type: ResourceType
    target: Target
    query: Mapping[str, str]
    user_agent: str = ""
    warnings: list[str] = field(default_factory=list, hash=False)

    @property
    def namespace(self) -> str:
        return self.target.namespace

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def subresource(self) -> str:
        return self.target.subresource

    def flag(self, parameter: str) -> bool:
        return self.query.get(parameter, "").lower() in ("true", "1")

    def integer(self, parameter: str) -> int | None:
        """A non-negative whole number, or None where the parameter is absent."""
        text = self.query.get(parameter)
        if not text:
            return None
        if not text.isascii() or not text.isdigit():
            raise bad_request(f'query parameter {parameter}: "{text}" is not a whole number')
        return int(text)

    def field_validation(self) -> FieldValidation:
        text = self.query.get("fieldValidation") or FieldValidation.WARN.value
        try:
            return FieldValidation(text)
        except ValueError:
            allowed = ", ".join(f'"{each.value}"' for each in FieldValidation)
            fault = invalid_value("fieldValidation", text, f"supported values: {allowed}")
            raise invalid(options_type("WriteOptions"), "", [fault]) from None

    def dry_run(self, body_options: JSON | None = None) -> bool:
        """`dryRun=All` does everything but write."""
        asked = self.query.get("dryRun") or ",".join((body_options or {}).get("dryRun") or [])
        if asked not in ("", "All"):
            fault = invalid_value("dryRun", asked, 'supported values: "All"')
            raise invalid(options_type("WriteOptions"), "", [fault])
        return asked == "All"


def options_type(kind: str) -> ResourceType:
    return ResourceType("meta.k8s.io", "v1", kind, kind.lower(), kind.lower())
