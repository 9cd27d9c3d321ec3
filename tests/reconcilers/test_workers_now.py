"""The workers of a check as the API server has them: by their versions, and whole only where the cache is behind."""

from __future__ import annotations

from typing import Any

import pytest

from crds.nodecheck import NodeCheck
from reconcilers.nodecheck.view import CheckView
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.setup import add_indexes
from tests.reconcilers.build import check_worker
from tests.reconcilers.caches import shaped_cache

JSON = dict[str, Any]
CHECK = NodeCheck.model_validate(
    {"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {"nodes": ["a", "b"]}}
)


def raw(index: int, version: str) -> JSON:
    found = check_worker().to_wire()
    owner = {"apiVersion": "x", "kind": "NodeCheck", "name": "c", "uid": "u", "controller": True}
    metadata = {"name": f"c-check-{index}", "namespace": "ns", "uid": f"w{index}", "resourceVersion": version}
    return found | {"metadata": metadata | {"ownerReferences": [owner]}}


class Server:
    def __init__(self, *found: JSON) -> None:
        self.found, self.asked = found, list[bool]()

    async def list(self, *_: Any, metadata_only: bool = False, **__: Any) -> JSON:
        self.asked.append(metadata_only)
        return {"items": [{"metadata": each["metadata"]} if metadata_only else each for each in self.found]}


@pytest.mark.parametrize(
    ("cached", "asked"), [(["1", "1"], [True]), (["1", "0"], [True, False]), (["1"], [True, False])]
)
async def test_they_are_read_whole_only_where_the_cache_is_behind(
    cached: list[str], asked: list[bool]
) -> None:
    server, cache = Server(raw(0, "1"), raw(1, "1")), shaped_cache()
    add_indexes(cache)
    for index, version in enumerate(cached):
        cache.store(ELASTICWORKERS).apply(raw(index, version))
    cache.store(ELASTICWORKERS).apply(raw(9, "1"))
    found = await CheckView(cache, server).workers_now(CHECK)  # type: ignore[arg-type]
    assert [each.metadata.name for each in found] == ["c-check-0", "c-check-1"], (
        "one that is gone is not there"
    )
    assert {each.metadata.resource_version for each in found} == {"1"} and server.asked == asked
