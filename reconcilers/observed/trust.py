"""The rule by which a statement counts in a namespace.

Statements are a verdict on a node, a pass, a claim on a node, and the exit code of a worker. They count in
their own namespace. In other namespaces, and for the cluster's nodes, they count only if an administrator has
labelled their namespace (`may-cordon`), because users can make their Pods report anything. Code that reads
other namespaces' objects applies the rule before it parses or counts them.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.resources import NAMESPACES, Object
from crds import names

TYPE_CHECKING = False
if TYPE_CHECKING:  # the CLI imports this module, and loads no client
    from controller.cache import Cache

BY_LABEL = "may-cordon"
"""Index of the Namespaces whose statements count everywhere, under MAY_CORDON."""
MAY_CORDON = "true"

CLUSTER = None
"""The reader of statements about the nodes themselves, such as their cordons and records."""


class Trust:
    """The rule, by the labels of Namespaces.

    A controller of one namespace may not read Namespaces, and sees no statements of other ones either.
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
            reader: the namespace in which it would count, or CLUSTER.
        """
        return made_in == reader or self.is_administrators(made_in)

    def is_administrators(self, namespace: str) -> bool:
        """Whether the statements of a namespace count everywhere."""
        return self._namespaces is None or may_cordon(self._namespaces.get(None, namespace))

    def administrators(self) -> list[str]:
        """Return the namespaces whose statements count everywhere."""
        if self._namespaces is None:
            return [self._only or ""]
        return [raw["metadata"]["name"] for raw in self._namespaces.by_index(BY_LABEL, MAY_CORDON)]

    def counting(self, objects: Iterable[Object], reader: str | None) -> list[Object]:
        """Return the stored objects whose statements count for the reader."""
        decided: dict[str, bool] = {}
        found = []
        for raw in objects:
            namespace = raw["metadata"].get("namespace") or ""
            if namespace not in decided:
                decided[namespace] = self.counts(namespace, reader)
            if decided[namespace]:
                found.append(raw)
        return found


def may_cordon(namespace: Object | None) -> bool:
    """Whether a Namespace has the label by which its statements count everywhere."""
    labels = (namespace or {}).get("metadata", {}).get("labels") or {}
    return bool(labels.get(names.LABEL_MAY_CORDON) == MAY_CORDON)


def _label_keys(namespace: Object) -> list[str]:
    return [MAY_CORDON] if may_cordon(namespace) else []
