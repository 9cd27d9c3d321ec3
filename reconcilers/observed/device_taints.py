"""Taints of the devices that a Pod uses, by their DRA drivers or an administrator's DeviceTaintRules.

A device is identified by driver, pool and name. A Pod's devices are in the ResourceClaims that are reserved
for it. If a claim does not tolerate a taint, its effect is:

* `NoSchedule` keeps new Pods off the device, so there is time to move the worker (`reconcilers/evictions`).
  It counts only for claims that were made from the Pod's template: the next Pod gets a claim of its own,
  with another device. A shared claim would follow the worker to any node.
* `NoExecute` ends Pods, at once or after the `tolerationSeconds` of the claim: the worker leaves by vote.
* `None` is for information.

Sources, read in November 2026: k8s.io/api/resource/v1/types.go of 1.37; the NVIDIA driver
(kubernetes-sigs/dra-driver-nvidia-gpu, device_health.go) sets `gpu.nvidia.com/xid` and `…/gpu-lost` with
`NoSchedule` for what is fatal, and never `NoExecute`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.cache import Cache
from controller.resources import PODS, Object
from reconcilers.observed.ownership import belongs_to
from reconcilers.runtime.kinds import DEVICETAINTRULES, RESOURCECLAIMS, RESOURCESLICES

EFFECTS = NO_SCHEDULE, NO_EXECUTE = ("NoSchedule", "NoExecute")
BY_POOL = "pool"
"""Index of slices and claims by the pools of their devices."""
BY_TAINT = "taint"
"""Index of slices with a tainted device, under `TAINTED`."""
TAINTED = "tainted"
BY_POD = "pod"
"""Index of claims by the uids of the Pods that they are reserved for."""


@dataclass(frozen=True)
class DeviceTaint:
    """A taint of a device."""

    driver: str
    device: str
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"device {self.device} of {self.driver} with the taint {self.key}{value}:{self.effect}"


class DeviceTaints:
    """Taints of Pods' devices, from a cache with the indexes of `add_indexes`.

    There are none where the API server does not serve the kinds, or forbids reading them.
    """

    def __init__(self, cache: Cache) -> None:
        self._slices = cache.store(RESOURCESLICES)
        self._claims = cache.store(RESOURCECLAIMS)
        self._rules = cache.store(DEVICETAINTRULES)
        self._pods = cache.store(PODS)

    def of(self, pod_uid: str, effect: str) -> DeviceTaint | None:
        """Return the first taint with this effect that counts for a Pod and that no claim tolerates."""
        if not self.are_any:
            return None
        claims = self._claims.by_index(BY_POD, pod_uid)
        if effect == NO_SCHEDULE:
            claims = [each for each in claims if belongs_to(each, pod_uid)]
        results = _results(claims)
        return next((taint for each in results for taint in self._not_tolerated(each, effect)), None)

    def pods_of(self, obj: Object) -> Iterator[Object]:
        """Yield the Pods with the devices of a raw slice or rule, or of a claim while there are taints."""
        claims = [obj] if self.are_any else []
        if obj["kind"] == RESOURCESLICES.kind:
            claims = [claim for pool in pool_keys(obj) for claim in self._claims.by_index(BY_POOL, pool)]
        elif obj["kind"] == DEVICETAINTRULES.kind:
            claims = [claim for claim in self._claims.list() if _is_of(obj, _results([claim]))]
        for claim in claims:
            for name in (each["name"] for each in _reserved(claim)):
                if (pod := self._pods.get(claim["metadata"]["namespace"], name)) is not None:
                    yield pod

    @property
    def are_any(self) -> bool:
        """Whether any device has taints that may count."""
        return self._slices.count(BY_TAINT, TAINTED) > 0 or len(self._rules) > 0

    def _not_tolerated(self, result: Object, effect: str) -> Iterator[DeviceTaint]:
        driver, device = result["driver"], result["device"]
        for taint in (*self._by_driver(result), *self._by_rules(result)):
            if taint.get("effect") == effect and not _tolerates(result.get("tolerations") or (), taint):
                yield DeviceTaint(driver, device, taint["key"], taint.get("value") or "", effect)

    def _by_driver(self, result: Object) -> Iterator[Object]:
        """Yield the taints in the newest slices of the pool; older ones exist while a driver updates it."""
        slices = self._slices.by_index(BY_POOL, _pool_key(result["driver"], result["pool"]))
        newest = max((each["spec"]["pool"]["generation"] for each in slices), default=0)
        for each in slices:
            if each["spec"]["pool"]["generation"] == newest:
                for device in each["spec"]["devices"]:
                    yield from device["taints"] if device["name"] == result["device"] else ()

    def _by_rules(self, result: Object) -> Iterator[Object]:
        return (rule["spec"]["taint"] for rule in self._rules.list() if _is_of(rule, [result]))


def add_indexes(cache: Cache) -> None:
    """Have a cache watch and index these kinds, where the API server serves them."""
    for resource in (RESOURCESLICES, RESOURCECLAIMS, DEVICETAINTRULES):
        cache.watch_optionally(resource)
    cache.add_index(RESOURCESLICES, BY_POOL, pool_keys)
    cache.add_index(RESOURCESLICES, BY_TAINT, taint_keys)
    cache.add_index(RESOURCECLAIMS, BY_POOL, pool_keys)
    cache.add_index(RESOURCECLAIMS, BY_POD, pod_keys)


# --- cached parts and their indexes -------------------------------------------------------------------------


def kept_of_slice(obj: Object) -> Object:
    """Return the slice with only its tainted devices."""
    spec, tainted = obj.get("spec") or {}, []
    for device in spec.get("devices") or ():
        if taints := [each for each in device.get("taints") or () if each.get("effect") in EFFECTS]:
            tainted.append({"name": device["name"], "taints": taints})
    kept = {"driver": spec["driver"], "pool": spec["pool"], "devices": tainted}
    return RESOURCESLICES.named(obj | {"spec": kept})


def kept_of_claim(obj: Object) -> Object:
    """Return the claim with only its devices and its Pods."""
    status = obj.get("status") or {}
    devices = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    fields = ("driver", "pool", "device", "tolerations")
    results = [{field: each[field] for field in fields if field in each} for each in devices]
    pods = [each for each in status.get("reservedFor") or () if each.get("resource") == PODS.plural]
    return RESOURCECLAIMS.named(obj | {"status": {"results": results, "pods": pods}})


def kept_of_rule(obj: Object) -> Object:
    """Return the rule with its kind."""
    return DEVICETAINTRULES.named(obj)


def pool_keys(obj: Object) -> Iterable[str]:
    """Index function of `BY_POOL`."""
    if obj["kind"] == RESOURCESLICES.kind:
        return [_pool_key(obj["spec"]["driver"], obj["spec"]["pool"]["name"])]
    return {_pool_key(each["driver"], each["pool"]) for each in _results([obj])}


def taint_keys(obj: Object) -> Iterable[str]:
    """Index function of `BY_TAINT`."""
    return [TAINTED] if obj["spec"]["devices"] else []


def pod_keys(obj: Object) -> Iterable[str]:
    """Index function of `BY_POD`."""
    return {each["uid"] for each in _reserved(obj)}


def taint_view(obj: Object) -> object:
    """Return the parts of a raw slice, claim or rule on which taints of Pods' devices depend."""
    return obj["metadata"]["uid"], obj.get("spec"), obj.get("status")


def _results(claims: Iterable[Object]) -> Iterator[Object]:
    return (result for claim in claims for result in claim["status"]["results"])


def _reserved(claim: Object) -> Sequence[Object]:
    found: Sequence[Object] = claim["status"]["pods"]
    return found


def _pool_key(driver: str, pool: str) -> str:
    return f"{driver}/{pool}"


def _is_of(rule: Object, results: Iterable[Object]) -> bool:
    """Whether all fields of a rule's selector match one of these devices; without a selector, none does."""
    selector = rule["spec"].get("deviceSelector")
    if selector is None:
        return False
    wanted = [(field, selector[field]) for field in ("driver", "pool", "device") if selector.get(field)]
    return any(all(each[field] == value for field, value in wanted) for each in results)


def _tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    """Whether a claim tolerates a taint for ever."""
    return any(
        toleration.get("key") in (None, "", taint["key"])
        and toleration.get("effect") in (None, "", taint["effect"])
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        and (taint["effect"] != NO_EXECUTE or toleration.get("tolerationSeconds") is None)
        for toleration in tolerations
    )
