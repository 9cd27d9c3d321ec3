"""Bodies that are no stored objects (DeleteOptions, Binding, ...), read by their own schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

from localcluster.apiserver.errors import bad_request
from localcluster.builtin import components
from localcluster.resource import JSON
from localcluster.schema import CompiledSchema
from localcluster.schema_nodes import reference_to

SUCCESS: JSON = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


@cache
def _schema(component: str) -> CompiledSchema:
    return CompiledSchema(reference_to(component), components(), custom=False)


def read_body(component: str, body: Any, **absent: Any) -> JSON:
    """The body as what it must be, without nulls and unknown fields; raises 400 for anything else.

    `absent` is what fields are that it does not have.
    """
    kind = component.rpartition(".")[2]
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise bad_request(f"the body of the request is not a {kind}")
    if body.get("kind") not in (None, "", kind):
        raise bad_request(f"the body of the request must be a {kind}, not a {body['kind']}")
    pruned, _ = _schema(component).prune({**absent, **body})
    read = _schema(component).default(pruned)
    faults = _schema(component).validate(read)
    if faults:
        raise bad_request(f"{kind}: {', '.join(str(fault) for fault in faults)}")
    return read
