"""The controller of nodes' cordons, and the changes that trigger it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.builder import ControllerBuilder, requests_for
from controller.cache import Cache
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import NAMESPACES, NODES, Object
from reconcilers.cordon.accusations import BY_DOMAIN, Accusations
from reconcilers.cordon.domains import MOST_NODES
from reconcilers.cordon.findings import failed_nodes
from reconcilers.cordon.reconciler import (
    BY_CORDON,
    CONDITIONS,
    NodeCordonReconciler,
    condition_of,
    cordon_keys,
    cordon_view,
    domain_keys,
)
from reconcilers.findings.finished import BY_VERDICT, accused_nodes, decided_nodes
from reconcilers.observed.domains import AUTO, domain_of
from reconcilers.observed.options import CordonMode, CordonOptions
from reconcilers.observed.trust import CLUSTER, Trust
from reconcilers.predicates import change_of, cordon_label_changes, more_than_metadata, without_report
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS
from reconcilers.runtime.tools import Tools

WORKERS = 1
"""One, since two cordons at once could exceed the limit."""


def add(manager: Manager, tools: Tools, options: CordonOptions) -> None:
    """Register the controller with the manager.

    Nodes held back by the limit are looked at periodically: a lifted cordon triggers none of them.
    """
    cache = manager.cache
    if options.mode is CordonMode.OFF:
        return
    add_indexes(cache)
    nodes, trust = cache.store(NODES), Trust(cache)
    accusations = cache.shared(Accusations)

    def judged(check: dict[str, Any]) -> Iterable[Request]:
        """The nodes that a check judges. Accusations that do not count trigger a look, too, since the node's
        own conditions may confirm them."""
        decided = decided_nodes(check)
        accusations.outdate_named(decided)
        counts = trust.counts(check["metadata"]["namespace"], CLUSTER)
        return _named(decided if counts else filter(accused_nodes(check).__contains__, decided))

    def neighbours(node: dict[str, Any]) -> Iterable[Request]:
        """The accused nodes of the domain, since accusations of most of them point to the switch."""
        accusations.outdate(node)
        domain = domain_of(node, AUTO)
        if not domain or not is_stated(node) or nodes.count(BY_DOMAIN, domain) > MOST_NODES:
            return []
        return requests_for(filter(is_stated, nodes.by_index(BY_DOMAIN, domain)))

    def failures(worker: dict[str, Any]) -> Iterable[Request]:
        accused = failed_nodes(worker)
        accusations.outdate_named(accused)
        return _named(accused)

    def all_nodes(_: Object) -> Iterable[Request]:
        for node in nodes.list():
            accusations.outdate(node)
        return requests_for(nodes.list())

    (
        ControllerBuilder(manager, "nodecordon")
        .for_(NODES, predicate=more_than_a_heartbeat)
        .watches(NODES, neighbours, predicate=more_than_a_heartbeat)
        .watches(NODECHECKS, judged, predicate=more_than_metadata)
        .watches(ELASTICWORKERS, failures, predicate=more_than_the_agents_report)
        .watches(NAMESPACES, all_nodes, predicate=cordon_label_changes)
        .with_workers(WORKERS)
        .build(NodeCordonReconciler(tools, options))
    )


def add_indexes(cache: Cache) -> None:
    """Add the indexes of accusations, cordons and domains."""
    cache.add_index(ELASTICWORKERS, BY_VERDICT, failed_nodes)
    cache.add_index(NODES, BY_CORDON, cordon_keys)
    cache.add_index(NODES, BY_DOMAIN, domain_keys)


more_than_a_heartbeat = change_of(cordon_view)
"""Whether a change of a Node concerns its cordon. Kubelets write each status every few minutes or seconds."""


def is_stated(node: Object) -> bool:
    """Whether a Node has one of our conditions, as every accused one has."""
    return any(condition_of(node, type_) for type_ in CONDITIONS)


@change_of
def more_than_the_agents_report(worker: Object) -> object:
    """The worker without its agent's report, on which no cordon depends."""
    return without_report(worker)


def _named(nodes: Iterable[str]) -> list[Request]:
    return [Request(None, name) for name in nodes]
