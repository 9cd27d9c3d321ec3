"""A version of an object is parsed once, however many read it."""

import pytest
from pydantic import ValidationError

from crds.elasticworker import ElasticWorker
from reconcilers.runtime.kinds import ELASTICWORKERS
from tests.reconcilers import build
from tests.reconcilers.caches import shaped_cache


def raw(version, **status):
    wire = build.worker(0, **status).to_wire()
    wire["metadata"]["resourceVersion"] = str(version)
    return wire


async def test_all_who_ask_a_cache_share_one_model_of_each_version():
    cache = shaped_cache(None)
    store = cache.store(ELASTICWORKERS)
    store.apply(raw(1))
    one, other = (cache.models(ELASTICWORKERS, ElasticWorker) for _ in range(2))
    assert one is other
    first = one.parse(store.get("default", "digits-worker-0"))
    assert first is other.parse(raw(1))
    store.apply(raw(2, nodeName="node-9"))
    second = one.parse(store.get("default", "digits-worker-0"))
    assert second is not first and second.status.node_name == "node-9"


async def test_what_cannot_be_read_is_tried_once_a_version_and_counted():
    cache = shaped_cache(None)
    store, models = cache.store(ELASTICWORKERS), cache.models(ELASTICWORKERS, ElasticWorker)
    broken = raw(1)
    broken["spec"]["index"] = "one"
    store.apply(broken)
    with pytest.raises(ValidationError) as first:
        models.parse(broken)
    with pytest.raises(ValidationError) as again:
        models.parse(broken)
    assert first.value is again.value
    assert models.parse_or_none(broken) is None and len([*models.readable([broken, raw(2)])]) == 1
    assert cache.unreadable_counts() == {ELASTICWORKERS.group_resource: 0}, "a newer version was read"
    store.apply(broken | {"metadata": broken["metadata"] | {"resourceVersion": "3"}})
    assert models.parse_or_none(store.list()[0]) is None
    assert cache.unreadable_counts() == {ELASTICWORKERS.group_resource: 1}
    store.delete(store.list()[0])
    assert cache.unreadable_counts() == {ELASTICWORKERS.group_resource: 0}
