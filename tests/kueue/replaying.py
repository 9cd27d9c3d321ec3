"""Replays a recording of the real Kueue against the stand-in, write by write.

`traces/NAME.jsonl.gz` has one JSON object a line: `base` (Unix seconds at t = 0), requests with the answer if they were
refused, each version of a Workload as the watch gave it (`seen`), what each ClusterQueue says is reserved (`usage`),
and the notes of who recorded it.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.errors import ApiError
from localcluster.patches import json_patch, merge_patch
from tests.kueue.objects import Key, Object, amount
from tests.kueue.standin import Kueue, Move
from tests.kueue.statuses import Config

GPU = "example.com/gpu"
FOLDER = Path(__file__).parent / "traces"
QUIET_SECONDS = 1.3
"""Kueue tries again what waits for quota a second after some came free; then it has done all that it would do."""
CONFIG = {"timeout_seconds": 60, "recovery_seconds": 30, "backoff_seconds": 5, "most_backoff_seconds": 20}
LATER = 1.1
"""Kueue's clocks count from times in whole seconds, and when the recording began is clear to a tenth of a second."""


def recorded(name: str) -> list[Object]:
    text = gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def administered(namespace: str) -> Iterator[Object]:
    """Return the queues that were there before each recording; of each flavor there are 64 CPUs."""
    for pool in ("fixed", "spot"):
        yield {"kind": "ResourceFlavor", "metadata": {"name": pool}, "spec": {"nodeLabels": {"pool": pool}}}
    main = "main" + namespace.removeprefix("kq")
    preemption = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    for local, name, gpus, more in (
        ("main", main, {"fixed": 8, "spot": 4}, {}),
        ("small", "small", {"fixed": 4}, preemption),
    ):
        flavors = [
            {
                "name": pool,
                "resources": [{"name": "cpu", "nominalQuota": 64}, {"name": GPU, "nominalQuota": count}],
            }
            for pool, count in gpus.items()
        ]
        groups = [{"coveredResources": ["cpu", GPU], "flavors": flavors}]
        yield {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": {"resourceGroups": groups} | more}
        yield {
            "kind": "LocalQueue",
            "metadata": {"name": local, "namespace": namespace},
            "spec": {"clusterQueue": name},
        }


def compared(obj: Object | None, uids: dict[str, str]) -> Any:
    """Return what is compared of a Workload: everything but times and versions."""
    if obj is None:
        return None
    metadata, status = obj["metadata"], dict(obj.get("status") or {})
    found = {
        name: value
        for name in ("generation", "labels", "annotations", "finalizers")
        if (value := metadata.get(name))
    }
    found["deleted"] = "deletionTimestamp" in metadata
    found["spec"] = obj["spec"]
    for each in status.pop("conditions", ()):
        found[each["type"]] = {key: value for key, value in each.items() if key != "lastTransitionTime"}
    for each in status.pop("admissionChecks", ()):
        found[f"check {each['name']}"] = {
            key: value for key, value in each.items() if key != "lastTransitionTime"
        }
    if "requeueState" in status:
        state = status["requeueState"]
        status["requeueState"] = state | ({"requeueAt": "set"} if "requeueAt" in state else {})
    text = json.dumps(found | {"status": status}, sort_keys=True)
    for uid, name in uids.items():
        text = text.replace(uid, name)
    return json.loads(text)


class Replay:
    """One recording.

    Args:
        name: its name.
        lost: Workloads that Kueue was to mark Finished as replaced, and did not.
        down: from when until when the manager was down, in seconds since the start.
        skipped: times of lines that are left out.
        late: lines, by time and Workload, that are compared after the next one.
        stale: times of lines in which observedGeneration is not compared.
    """

    def __init__(
        self,
        name: str,
        *,
        lost: tuple[str, ...] = (),
        down: tuple[tuple[float, float], ...] = (),
        skipped: tuple[float, ...] = (),
        late: tuple[tuple[float, str], ...] = (),
        stale: tuple[float, ...] = (),
    ) -> None:
        self._steps = recorded(name)
        self._lost, self._down, self._skipped = lost, down, skipped
        self._late, self._stale = late, stale
        self._base = self._steps.pop(0)["base"]
        self._at = 0.0
        self._namespace = next(step["namespace"] for step in self._steps if "seen" in step)
        config = Config(**CONFIG, most_requeues=3)  # type: ignore[arg-type]
        self.kueue = Kueue(self._now, config)
        self._objects: dict[tuple[str, str], Object] = {}
        for obj in administered(self._namespace):
            self._put(obj)
        self._uids: dict[str, str] = {}
        self._ours: dict[str, str] = {}
        """The stand-in's uids, by the recording's."""
        self._pending: dict[str, list[Object]] = {}
        self._usage: dict[str, Object] = {}

    def _now(self) -> float:
        return self._base + self._at

    def __deepcopy__(self, memo: Any) -> Replay:
        return self  # the stand-in's clock

    def _put(self, obj: Object) -> None:
        self._objects[obj["kind"], obj["metadata"]["name"]] = obj
        self.kueue.put(obj)

    def run(self) -> int:
        """Replay it, and return how many versions of Workloads were compared."""
        compared_count, last = 0, 0.0
        held: list[Object] = []
        for step in self._steps:
            if "note" in step or "usage" in step:
                if "usage" in step:
                    self._usage[step["usage"]] = step["totals"]
                continue
            if step["t"] - last >= QUIET_SECONDS:
                self._advance(last + QUIET_SECONDS)
                self._quiet()
            self._advance(step["t"])
            if "request" in step:
                self._request(step)
            elif (step["t"], step["seen"]) in self._late:
                held.append(step)
            elif step["t"] not in self._skipped:
                for each in (step, *held):
                    self._seen(each)
                    compared_count += 1
                held.clear()
            last = step["t"]
        self._quiet()
        return compared_count

    def _advance(self, at: float) -> None:
        self._at = at
        for start, end in self._down:
            if start <= at:
                self.kueue.down = at < end

    def _quiet(self) -> None:
        """Check that nothing more comes, and that as much is charged as the ClusterQueues show."""
        for name in list(self._pending):
            self._without_effect(name)
        for move in self.kueue.moves():
            if move.name == "finish replaced" and move.workload[1] in self._lost:
                move.lose()
        left = self.kueue.moves()
        assert not left, f"{self._at}: Kueue did nothing more, but the stand-in would {left}"
        for queue, totals in self._usage.items() if not self.kueue.down else ():
            for flavor, resources in totals.items():
                for resource, total in resources.items():
                    used = self.kueue.used(queue, flavor, resource)
                    wanted = -(-amount(resource, total) // amount(resource, 1))
                    assert used == wanted, f"{self._at}: {used} {resource} of {queue} {flavor}, not {total}"

    # --- requests -----------------------------------------------------------------------------------------

    def _request(self, step: Object) -> None:
        if step["kind"] != "Workload":
            self._administer(step)
        elif "refused" not in step:
            self._pending.setdefault(step["name"], []).append(step)
        else:
            self._without_effect(step["name"])
            before = copy.deepcopy(self.kueue.workloads)
            with pytest.raises(ApiError) as caught:
                self._send(self.kueue, step)
            assert (caught.value.status, str(caught.value)) == (
                step["refused"]["code"],
                step["refused"]["message"],
            )
            assert self.kueue.workloads == before

    def _administer(self, step: Object) -> None:
        key, body = (step["kind"], step["name"]), step["body"]
        if step["request"] == "PATCH":
            apply: Callable[[Object, Any], Object] = json_patch if isinstance(body, list) else merge_patch
            body = apply(self._objects[key], body)
        self._put(body)

    def _send(self, kueue: Kueue, step: Object) -> None:
        key, text = (step["namespace"], step["name"]), json.dumps(step["body"])
        for uid, ours in self._ours.items():
            text = text.replace(uid, ours)
        body = json.loads(text)
        if step["request"] == "POST":
            kueue.create(body)
        elif step["request"] == "DELETE":
            kueue.delete(*key)
        elif step["subresource"] == "status":
            kueue.put_status(kueue.workloads[key] | body)
        else:
            kueue.patch(*key, body)

    def _without_effect(self, name: str) -> None:
        """Send what was accepted and left no trace: it changes nothing."""
        for step in self._pending.pop(name, ()):
            before = self.kueue.workloads.get((step["namespace"], name))
            self._send(self.kueue, step)
            assert self.kueue.workloads.get((step["namespace"], name)) is before, step

    # --- what the watch gave ------------------------------------------------------------------------------

    def _seen(self, step: Object) -> None:
        name, obj = step["seen"], step["object"]
        key = (step["namespace"], name)
        if obj is not None:
            self._uids[obj["metadata"]["uid"]] = f"uid of {name}"
        wanted = compared(obj, self._uids)
        self._make(step, key, wanted)
        if obj is not None:
            self._ours[obj["metadata"]["uid"]] = self.kueue.workloads[key]["metadata"]["uid"]

    def _make(self, step: Object, key: Key, wanted: Any) -> None:
        """Bring the stand-in there, by a request or a move."""
        self._loosely = step["t"] in self._stale
        if self._same(self._current(self.kueue, key), wanted):
            return
        tried: list[Any] = []
        for act in (self._sent, self._collected, self._moved):
            if act(key, wanted, tried):
                return
        self._at += LATER
        if self._moved(key, wanted, tried):
            return
        differences = [_difference(wanted, each) for each in tried] or ["nothing to do"]
        raise AssertionError(
            f"{step['t']} {key[1]} is not what the stand-in makes of it:\n"
            + "\n or ".join(differences)
            + f"\nmoves: {self.kueue.moves()}"
        )

    def _current(self, kueue: Kueue, key: Key) -> Any:
        obj = kueue.workloads.get(key)
        uids = {
            each["metadata"]["uid"]: f"uid of {each['metadata']['name']}" for each in kueue.workloads.values()
        }
        return compared(obj, uids)

    def _same(self, found: Any, wanted: Any) -> bool:
        if self._loosely and found and wanted:
            found, wanted = (
                {key: _without_generation(value) for key, value in each.items()} for each in (found, wanted)
            )
        return bool(found == wanted)

    def _try(self, key: Key, wanted: Any, tried: list[Any], act: Callable[[Kueue], None]) -> bool:
        """Do it if that makes what is wanted."""
        trial = copy.deepcopy(self.kueue)
        act(trial)
        found = self._current(trial, key)
        if self._same(found, wanted):
            act(self.kueue)
            return True
        tried.append(found)
        return False

    def _sent(self, key: Key, wanted: Any, tried: list[Any]) -> bool:
        waiting = self._pending.get(key[1], [])
        while waiting:
            if self._try(key, wanted, tried, lambda kueue: self._send(kueue, waiting[0])):
                waiting.pop(0)
                return True
            if tried[-1] != self._current(self.kueue, key):
                return False
            self._send(self.kueue, waiting.pop(0))  # of no effect
        return False

    def _collected(self, key: Key, wanted: Any, tried: list[Any]) -> bool:
        """The garbage collector marks what has lost its owner."""
        if (
            wanted is None
            or not wanted["deleted"]
            or "deletionTimestamp" in self.kueue.workloads[key]["metadata"]
        ):
            return False
        return self._try(key, wanted, tried, lambda kueue: kueue.delete(*key))

    def _moved(self, key: Key, wanted: Any, tried: list[Any]) -> bool:
        for index, move in enumerate(self.kueue.moves()):
            if move.workload == key and self._try(
                key, wanted, tried, lambda kueue, i=index: _nth(kueue, i).do()
            ):  # type: ignore[misc]
                return True
        return False


def _without_generation(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: each for key, each in value.items() if key != "observedGeneration"}


def _nth(kueue: Kueue, index: int) -> Move:
    return kueue.moves()[index]


def _difference(wanted: Any, found: Any) -> str:
    if wanted is None or found is None:
        return f"there {wanted is not None}, here {found is not None}"
    return "; ".join(
        f"{key}: {json.dumps(wanted.get(key))} was, {json.dumps(found.get(key))} is here"
        for key in sorted({*wanted, *found})
        if wanted.get(key) != found.get(key)
    )
