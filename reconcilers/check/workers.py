"""The ElasticWorkers of a check of nodes: one a node, made for the check. Pure."""

from __future__ import annotations

from typing import Any

from crds import names
from crds.nodecheck import NodeCheck
from reconcilers.pod.builder import check_labels, owner_reference


def new_check_worker(check: NodeCheck, index: int, node: str) -> dict[str, Any]:
    """The ElasticWorker object to create for one node of the check."""
    metadata = check.metadata
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticWorker",
        "metadata": {
            "name": f"{metadata.name}-{names.CHECK}-{index}",
            "namespace": metadata.namespace,
            "labels": check_labels(metadata.name, index),
            "ownerReferences": [owner_reference("NodeCheck", metadata.name, metadata.uid)],
        },
        "spec": {
            "checkName": metadata.name,
            "type": names.CHECK,
            "index": index,
            "incarnation": 1,
            "nodeName": node,
        },
    }
