"""Selection of the objects of a collection that a list, a watch or a deletion of many refers to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from localcluster.apiserver.errors import bad_request
from localcluster.apiserver.requests import Context
from localcluster.apiserver.store import Key
from localcluster.resource import JSON, ResourceType
from localcluster.selectors import FieldSelector, SelectorError, parse_fields, parse_labels, predicate

_EVERY_KIND = frozenset({"metadata.name", "metadata.namespace"})
_INVOLVED_OBJECT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_SELECTABLE: Mapping[str, frozenset[str]] = {
    "pods": frozenset({"spec.nodeName", "spec.schedulerName", "status.phase", "status.podIP"}),
    "nodes": frozenset({"spec.unschedulable"}),
    "namespaces": frozenset({"status.phase"}),
    "secrets": frozenset({"type"}),
    "events": frozenset({"reason", "reportingComponent", "source", "type"})
    | {f"involvedObject.{part}" for part in _INVOLVED_OBJECT},
}


@dataclass(frozen=True)
class Selection:
    """A part of a collection: a namespace, a name, and a test of the object."""

    namespace: str | None = None
    name: str | None = None
    selects: Callable[[JSON], bool] | None = None

    def matches(self, key: Key, obj: JSON) -> bool:
        return (
            (self.namespace is None or key[0] == self.namespace)
            and (self.name is None or key[1] == self.name)
            and (self.selects is None or self.selects(obj))
        )

    @property
    def is_filtered(self) -> bool:
        return self.name is not None or self.selects is not None


def read_selection(context: Context) -> Selection:
    """The selection in a request's path and query."""
    try:
        labels = parse_labels(context.query.get("labelSelector", ""))
        fields = parse_fields(context.query.get("fieldSelector", ""))
    except SelectorError as error:
        raise bad_request(str(error)) from error
    check_selectable(context.type, fields)
    name = context.name or fields.value_of("metadata.name")
    rest = FieldSelector(
        tuple(each for each in fields.requirements if each.negated or each.path != ("metadata", "name"))
    )
    return Selection(context.namespace or None, name, predicate(labels, rest))


def check_selectable(resource_type: ResourceType, fields: FieldSelector) -> None:
    """Like Kubernetes, refuse what it has no index for, lest a client works here and not there."""
    built_in = _SELECTABLE.get(resource_type.group_resource, frozenset())
    supported = _EVERY_KIND | built_in | resource_type.selectable_fields
    for requirement in fields.requirements:
        field = ".".join(requirement.path)
        if field not in supported:
            raise bad_request(f"field label not supported: {field}")
