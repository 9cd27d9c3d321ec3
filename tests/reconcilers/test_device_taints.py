"""Taints of DRA devices: which Pods they are of, whose worker is moved, and whose leaves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cache import Cache
from controller.resources import PODS
from reconcilers.observed.device_taints import NO_EXECUTE, NO_SCHEDULE, DeviceTaints
from reconcilers.runtime.kinds import DEVICETAINTRULES, ELASTICWORKERS, RESOURCECLAIMS, RESOURCESLICES
from reconcilers.setup import add_indexes
from reconcilers.shapes import kept_of_claim, kept_of_rule, kept_of_slice
from tests.reconcilers.api import Api
from tests.reconcilers.caches import shaped_cache
from tests.reconcilers.test_eviction_notices import Town
from tests.reconcilers.test_evictions import events, nodes, settled, status, training, world

JSON = dict[str, Any]
DRIVER = "gpu.nvidia.com"
XID = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
KINDS = {RESOURCESLICES: kept_of_slice, RESOURCECLAIMS: kept_of_claim, DEVICETAINTRULES: kept_of_rule}


def slice_of(pool: str, *taints: JSON, generation: int = 1, name: str = "", device: str = "gpu-0") -> JSON:
    """As a driver publishes its devices."""
    devices = [{"name": device, "attributes": {"uuid": {"string": "GPU-1"}}, "taints": list(taints)}]
    spec = {"driver": DRIVER, "nodeName": pool, "devices": [*devices, {"name": "gpu-9"}]}
    spec["pool"] = {"name": pool, "generation": generation, "resourceSliceCount": 1}
    return RESOURCESLICES.manifest({"name": name or f"slice-{pool}"}, spec=spec)


def claim_of(pod: JSON, pool: str, *tolerations: JSON, device: str = "gpu-0") -> JSON:
    """As the scheduler allocates a device to a Pod."""
    result = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}
    result |= {"tolerations": list(tolerations)} if tolerations else {}
    reserved = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]
    made = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    owner = {"apiVersion": "v1", "kind": "Pod", "controller": True} | reserved[0]
    del owner["resource"]
    metadata = {"name": f"{pod['metadata']['name']}-gpu", "namespace": "default", "ownerReferences": [owner]}
    return RESOURCECLAIMS.manifest(metadata, status=made)


def shared(claim: JSON) -> JSON:
    """The same claim, made by a user and not of a Pod's template."""
    metadata = {key: value for key, value in claim["metadata"].items() if key != "ownerReferences"}
    return claim | {"metadata": metadata}


def rule(effect: str, **selector: str) -> JSON:
    taint = {"key": "example.com/maintenance", "effect": effect}
    return DEVICETAINTRULES.manifest({"name": "rule"}, spec={"deviceSelector": selector, "taint": taint})


class Devices:
    """The taints of one Pod's devices."""

    def __init__(self, *objects: JSON, cache: Cache | None = None) -> None:
        self.cache = cache or shaped_cache()
        if cache is None:
            add_indexes(self.cache)
        for obj in objects:
            self.put(obj)
        self.taints = DeviceTaints(self.cache)

    def put(self, obj: JSON) -> None:
        kind = next(kind for kind in KINDS if kind.kind == obj["kind"])
        metadata = {"uid": obj["metadata"]["name"], "resourceVersion": "1"} | obj["metadata"]
        self.cache.store(kind).apply(KINDS[kind](obj | {"metadata": metadata}))

    def of(self, effect: str) -> str:
        found = self.taints.of("u", effect)
        return str(found) if found is not None else ""


POD: JSON = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {"nodeName": "n"}}


def test_the_taint_names_the_device_its_driver_and_the_effect() -> None:
    devices = Devices(slice_of("n", XID), claim_of(POD, "n"))
    assert devices.of(NO_SCHEDULE) == (
        "device gpu-0 of gpu.nvidia.com with the taint gpu.nvidia.com/xid=79:NoSchedule"
    )
    assert not devices.of(NO_EXECUTE)


@pytest.mark.parametrize(
    "objects",
    [
        [slice_of("n", XID | {"effect": "None"}), claim_of(POD, "n")],
        [slice_of("n", XID), claim_of(POD | {"metadata": POD["metadata"] | {"uid": "other"}}, "n")],
        [slice_of("n", XID, name="old"), slice_of("n", generation=2), claim_of(POD, "n")],
        [rule("NoSchedule", device="gpu-1"), claim_of(POD, "n")],
        [rule("None"), claim_of(POD, "n")],
        [rule("NoSchedule") | {"spec": {"taint": XID}}, claim_of(POD, "n")],
        [slice_of("n", XID), shared(claim_of(POD, "n"))],
    ],
    ids=[
        "for information",
        "another Pod",
        "an older generation",
        "a rule for another device",
        "a rule for information",
        "a rule without a selector",
        "a claim that goes with the worker",
    ],
)
def test_what_concerns_no_device_of_the_pod_is_nothing(objects: list[JSON]) -> None:
    assert not Devices(*objects).of(NO_SCHEDULE)


@pytest.mark.parametrize("selector", [{}, {"driver": DRIVER}, {"pool": "n", "device": "gpu-0"}])
def test_a_rule_taints_the_devices_that_it_selects(selector: dict[str, str]) -> None:
    found = Devices(rule("NoSchedule", **selector), claim_of(POD, "n")).of(NO_SCHEDULE)
    assert found == "device gpu-0 of gpu.nvidia.com with the taint example.com/maintenance:NoSchedule"


@pytest.mark.parametrize(
    ("toleration", "effect", "tolerated"),
    [
        ({"operator": "Exists"}, NO_SCHEDULE, True),
        ({"key": XID["key"], "operator": "Exists", "effect": NO_SCHEDULE}, NO_SCHEDULE, True),
        ({"key": XID["key"], "value": "79"}, NO_SCHEDULE, True),
        ({"key": XID["key"], "operator": "Equal", "value": "48"}, NO_SCHEDULE, False),
        ({"key": "other", "operator": "Exists"}, NO_SCHEDULE, False),
        ({"operator": "Exists", "effect": NO_EXECUTE}, NO_SCHEDULE, False),
        ({"operator": "Exists"}, NO_EXECUTE, True),
        ({"operator": "Exists", "tolerationSeconds": 300}, NO_EXECUTE, False),
    ],
)
def test_a_taint_that_the_claim_tolerates_for_ever_counts_nothing(
    toleration: JSON, effect: str, tolerated: bool
) -> None:
    taint = XID | {"effect": effect}
    assert bool(Devices(slice_of("n", taint), claim_of(POD, "n", toleration)).of(effect)) is not tolerated


@given(
    tainted=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3))),
    claimed=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=4),
)
def test_invariant_a_pod_has_a_taint_exactly_if_a_device_of_its_claims_has(
    tainted: set[tuple[int, int]], claimed: set[tuple[int, int]]
) -> None:
    devices = Devices()
    for pool, device in tainted:
        devices.put(slice_of(f"n{pool}", XID, name=f"s{pool}-{device}", device=f"gpu-{device}"))
    for number, (pool, device) in enumerate(claimed):
        claim = claim_of(POD, f"n{pool}", device=f"gpu-{device}")
        devices.put(claim | {"metadata": claim["metadata"] | {"name": f"c{number}"}})
    assert bool(devices.of(NO_SCHEDULE)) is bool(tainted & claimed)


# --- played by all reconcilers ------------------------------------------------------------------------------


def with_device(api: Api, index: int, *tolerations: JSON) -> str:
    """Give a worker's Pod the first device of its node; return the node."""
    pod = next(each for each in api.list(PODS) if each["metadata"]["name"].startswith(f"j-worker-{index}"))
    api.create(RESOURCECLAIMS, claim_of(pod, pod["spec"]["nodeName"], *tolerations))
    return str(pod["spec"]["nodeName"])


@pytest.mark.parametrize("by", ["driver", "rule"])
def test_a_worker_whose_device_takes_no_new_pods_is_moved_first_and_no_step_is_lost(by: str) -> None:
    run = training()
    node = with_device(run.api, 1)
    if by == "driver":
        run.api.create(RESOURCESLICES, slice_of(node, XID))
    else:
        run.api.create(DEVICETAINTRULES, rule("NoSchedule", pool=node))
    api = settled(run).api
    assert world(api) == (2, "0,2-3") and len(api.list(PODS)) == 3 and node not in nodes(api)
    assert not status(api).get("failures") and events(api, "WorldBroken") == []
    (message,) = events(api, "EvictionAnnounced")
    key = "gpu.nvidia.com/xid=79" if by == "driver" else "example.com/maintenance"
    assert message.startswith(
        f"{node} has the device gpu-0 of {DRIVER} with the taint {key}:NoSchedule: worker 1 must leave"
    )


def test_a_worker_whose_claim_tolerates_the_end_for_a_time_leaves_before_it() -> None:
    run = training()
    node = with_device(run.api, 1, {"operator": "Exists", "tolerationSeconds": 300})
    run.api.create(RESOURCESLICES, slice_of(node, XID | {"effect": "NoExecute"}))
    api = settled(run).api
    assert node not in nodes(api) and world(api)[0] > 1
    assert status(api)["failures"] == {"CheckFailed": 1} and events(api, "WorldBroken") == []
    end = api.get(ELASTICWORKERS, "j-worker-1")["status"]["lastExit"]
    assert end["reason"] == "DeviceTainted"
    assert end["message"].endswith(
        "device gpu-0 of gpu.nvidia.com with the taint gpu.nvidia.com/xid=79:NoExecute"
    )


def test_notices_of_a_tainted_device_announce_no_eviction_and_end_with_the_taint() -> None:
    town = Town()
    town.worker("a", 0, 0)
    town.worker("a", 1, 1)
    uid = town.cache.store(ELASTICWORKERS).list()[1]["status"]["podUid"]
    pod = POD | {"metadata": POD["metadata"] | {"uid": uid, "resourceVersion": "1"}}
    town.cache.store(PODS).apply(pod)
    devices = Devices(claim_of(pod, "n"), cache=town.cache)
    ages = list[Any]()
    for version, taints in enumerate([[], [XID], [XID], [], [XID]]):
        devices.put(slice_of("n", *taints) | {"metadata": {"name": "s", "resourceVersion": str(version + 1)}})
        devices.put(slice_of("m", XID))
        ages.append(town.of("a"))
    assert ages == [{}, {1: None}, {1: None}, {}, {1: None}]
