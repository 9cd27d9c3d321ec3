"""What wakes a look at a node's cordon, and at its record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.builder import ControllerBuilder
from controller.cache import Cache
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import NAMESPACES, NODES, Object
from controller.store import Change
from reconcilers.cordon.accusations import BY_DOMAIN, Accusations
from reconcilers.cordon.domains import MOST_NODES
from reconcilers.cordon.findings import accused_nodes, decided_nodes, failed_nodes
from reconcilers.cordon.reconciler import (
    BY_CORDON,
    CONDITIONS,
    NodeCordonReconciler,
    NodeRecordReconciler,
    condition_of,
    cordon_keys,
    cordon_view,
    domain_keys,
)
from reconcilers.findings.finished import BY_VERDICT
from reconcilers.observed.domains import AUTO, domain_of
from reconcilers.observed.options import CordonMode, CordonOptions
from reconcilers.observed.trust import CLUSTER, Trust, may_cordon
from reconcilers.predicates import change_of, without_report
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS
from reconcilers.runtime.tools import Tools

WORKERS = 1
"""No more: two cordons at once could both take the last place under the limit."""
RECORD_WORKERS = 16


def add(manager: Manager, tools: Tools, options: CordonOptions) -> None:
    """Register both controllers with the manager.

    Nodes that the limit holds back are looked at again by time: whatever gives room wakes none of them.
    """
    cache = manager.cache
    if options.mode is CordonMode.OFF:
        return
    add_indexes(cache)
    nodes, trust = cache.store(NODES), Trust(cache)
    accusations = cache.shared(Accusations)

    def counts(check: Object) -> bool:
        return trust.counts(check["metadata"]["namespace"], CLUSTER)

    def judged(check: dict[str, Any]) -> Iterable[Request]:
        """Accusations that do not count are looked at too: the node itself may bear them out."""
        decided = decided_nodes(check)
        accusations.outdate_named(decided)
        return _named(decided if counts(check) else filter(accused_nodes(check).__contains__, decided))

    def tested(check: dict[str, Any]) -> Iterable[Request]:
        return _named(decided_nodes(check)) if counts(check) else []

    def neighbours(node: dict[str, Any]) -> Iterable[Request]:
        """What most nodes of a domain are accused of is another thing than what one is."""
        accusations.outdate(node)
        domain = domain_of(node, AUTO)
        if not domain or not is_stated(node) or nodes.count(BY_DOMAIN, domain) > MOST_NODES:
            return []
        return _all(filter(is_stated, nodes.by_index(BY_DOMAIN, domain)))

    def failures(worker: dict[str, Any]) -> Iterable[Request]:
        accused = failed_nodes(worker)
        accusations.outdate_named(accused)
        return _named(accused)

    def all_nodes(_: Object) -> Iterable[Request]:
        for node in nodes.list():
            accusations.outdate(node)
        return _all(nodes.list())

    (
        ControllerBuilder(manager, "nodecordon")
        .for_(NODES, predicate=more_than_a_heartbeat)
        .watches(NODES, neighbours, predicate=more_than_a_heartbeat)
        .watches(NODECHECKS, judged)
        .watches(ELASTICWORKERS, failures, predicate=more_than_the_agents_report)
        .watches(NAMESPACES, all_nodes, predicate=cordon_label_changes)
        .with_workers(WORKERS)
        .build(NodeCordonReconciler(tools, options))
    )
    (
        ControllerBuilder(manager, "noderecord")
        .for_(NODES, predicate=more_than_a_heartbeat)
        .watches(NODECHECKS, tested)
        .watches(NAMESPACES, all_nodes, predicate=cordon_label_changes)
        .with_workers(RECORD_WORKERS)
        .build(NodeRecordReconciler(tools))
    )


def add_indexes(cache: Cache) -> None:
    """Index what is looked up besides names."""
    cache.add_index(ELASTICWORKERS, BY_VERDICT, failed_nodes)
    cache.add_index(NODES, BY_CORDON, cordon_keys)
    cache.add_index(NODES, BY_DOMAIN, domain_keys)


def cordon_label_changes(change: Change) -> bool:
    """The Namespace's may-cordon label changed. That is rare, so every node is looked at."""
    return may_cordon(change.old) != may_cordon(change.new)


more_than_a_heartbeat = change_of(cordon_view)
"""What concerns a Node's cordon. Kubelets write every Node's status every few minutes or seconds."""


def is_stated(node: Object) -> bool:
    """Whether a Node has ever had one of our conditions, as each that is accused has."""
    return any(condition_of(node, type_) for type_ in CONDITIONS)


@change_of
def more_than_the_agents_report(worker: Object) -> object:
    """A worker's Pod does not depend on what its agent reports."""
    return without_report(worker)


def _named(nodes: Iterable[str]) -> list[Request]:
    return [Request(None, name) for name in nodes]


def _all(nodes: Iterable[Object]) -> list[Request]:
    return _named(node["metadata"]["name"] for node in nodes)
