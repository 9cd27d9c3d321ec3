"""ValidatingAdmissionPolicies: CEL expressions that every write which they match must satisfy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from localcluster.apiserver.authentication import User
from localcluster.apiserver.store import Store
from localcluster.resource import JSON, ResourceType


class Operation(Enum):
    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True)
class Admission:
    """One write, as policies see it."""

    operation: Operation
    type: ResourceType
    subresource: str
    namespace: str
    name: str
    user: User
    obj: JSON | None
    old: JSON | None
    namespace_object: JSON | None
    dry_run: bool


class Policies:
    def __init__(self, store: Store) -> None:
        self._store = store

    def any(self) -> bool:
        return False

    def check(self, admission: Admission) -> None:
        return None
