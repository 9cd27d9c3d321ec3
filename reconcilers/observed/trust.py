"""The rule of which statements count in which namespaces.

A statement counts in the namespace that it was made in: a verdict on a node, a pass, a claim on a node, the
exit code of a worker. Beyond it, in other namespaces and for the cluster's nodes, a statement counts only if
an administrator has labelled its namespace (`may-cordon`), because whoever runs Pods in a namespace can make
them say anything. Readers of other namespaces' objects ask here before they parse or count any of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.resources import NAMESPACES, Object
from crds import names

TYPE_CHECKING = False
if TYPE_CHECKING:  # the CLI's commands read what is decided here, and load no client
    from controller.cache import Cache

BY_LABEL = "may-cordon"
"""Index of Namespaces: those whose statements count everywhere, under MAY_CORDON."""
MAY_CORDON = "true"

CLUSTER = None
"""The reader of statements about the nodes themselves, such as their cordons and records."""


class Trust:
    """The rule, by the labels of Namespaces.

    A controller of one namespace may not read Namespaces. It sees no statement from another one either.
    """

    def __init__(self, cache: Cache) -> None:
        self._only = cache.namespace
        self._namespaces = cache.store(NAMESPACES) if cache.namespace is None else None
        if self._namespaces is not None:
            self._namespaces.add_index(BY_LABEL, _label_keys)

    def counts(self, made_in: str, reader: str | None) -> bool:
        """Whether a statement counts.

        Args:
            made_in: the namespace of the object that makes it.
            reader: the namespace that it is to count in, or CLUSTER.
        """
        return made_in == reader or self.is_administrators(made_in)

    def is_administrators(self, namespace: str) -> bool:
        """Whether the statements of a namespace count everywhere."""
        return self._namespaces is None or may_cordon(self._namespaces.get(None, namespace))

    def administrators(self) -> list[str]:
        """The namespaces whose statements count everywhere."""
        if self._namespaces is None:
            return [self._only or ""]
        return [raw["metadata"]["name"] for raw in self._namespaces.by_index(BY_LABEL, MAY_CORDON)]

    def counting(self, objects: Iterable[Object], reader: str | None) -> list[Object]:
        """The stored objects whose statements count for the reader."""
        known: dict[str, bool] = {}
        found = []
        for raw in objects:
            namespace = raw["metadata"].get("namespace") or ""
            if namespace not in known:
                known[namespace] = self.counts(namespace, reader)
            if known[namespace]:
                found.append(raw)
        return found


def may_cordon(namespace: Object | None) -> bool:
    """Whether a Namespace has the label by which its statements count everywhere."""
    labels = (namespace or {}).get("metadata", {}).get("labels") or {}
    return bool(labels.get(names.LABEL_MAY_CORDON) == MAY_CORDON)


def _label_keys(namespace: Object) -> list[str]:
    return [MAY_CORDON] if may_cordon(namespace) else []
