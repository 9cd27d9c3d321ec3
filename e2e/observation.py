"""History of one namespace: every version of its objects that a watch has sent.

Scenarios wait for conditions on this instead of sleeping, and afterwards ask its history questions such as
"was there ever a second world for one round?".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import requests

from dlr.job.check_outcome import rounds_of
from e2e.api import Api, Kind, Object, Refused

Answer = TypeVar("Answer")

PATIENCE_SECONDS = 300.0
"""Time limit of waits that claim nothing about speed: load makes a machine many times slower."""
RECONNECT_SECONDS = 0.5
LOOK_AGAIN_SECONDS = 1.0  # conditions may look at more than objects
CATCH_UP_SECONDS = 60.0
"""Limit for a watch to catch up with a list. Some scenarios stop the API server."""
WATCHED = (Kind.JOB, Kind.WORKER, Kind.SHARD_SET, Kind.CHECK, Kind.PLAN, Kind.POD, Kind.EVENT)


class Timeout(AssertionError):
    """The condition did not come true in time; the message tells what was there instead."""


class Observation:
    """Watches what is in a namespace, of the kinds above, from its creation until `close`."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.namespace = namespace
        self.history: dict[Kind, list[Object]] = {kind: [] for kind in WATCHED}
        self._current: dict[Kind, dict[str, Object]] = {kind: {} for kind in WATCHED}
        self._versions: dict[Kind, int] = dict.fromkeys(WATCHED, 0)
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._api = Api(kubeconfig)
        for kind in WATCHED:
            threading.Thread(target=self._follow, args=(Api(kubeconfig), kind), daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._api.close()

    def objects(self, kind: Kind) -> dict[str, Object]:
        """The present objects by name."""
        with self._changed:
            return dict(self._current[kind])

    def job(self, name: str) -> Object:
        """The job as last seen; empty while there is none."""
        return self.objects(Kind.JOB).get(name, {})

    def workers(self, job: str) -> list[Object]:
        """The job's ElasticWorkers, by index."""
        mine = [w for w in self.objects(Kind.WORKER).values() if w["spec"].get("jobName") == job]
        return sorted(mine, key=lambda worker: int(worker["spec"]["index"]))

    def shard_set(self, job: str) -> Object:
        """The status of the job's only ShardSet."""
        mine = [each for each in self.objects(Kind.SHARD_SET).values() if each["spec"]["jobName"] == job]
        (found,) = mine
        status: Object = found["status"]
        return status

    def checks(self) -> list[Object]:
        """The node checks, in the order of their making."""

        def age(check: Object) -> tuple[str, str]:
            return check["metadata"]["creationTimestamp"], check["metadata"]["name"]

        return sorted(self.objects(Kind.CHECK).values(), key=age)

    def pods(self) -> dict[str, Object]:
        return self.objects(Kind.POD)

    def events(self, *, reason: str | None = None, of: str | None = None) -> list[Object]:
        """Events, perhaps only those of one reason or about the object of one name."""
        return [
            event
            for event in self.objects(Kind.EVENT).values()
            if (reason is None or event.get("reason") == reason)
            and (of is None or event["involvedObject"].get("name") == of)
        ]

    def wait_for(
        self, what: str, condition: Callable[[], Answer | None], within_seconds: float = PATIENCE_SECONDS
    ) -> Answer:
        """Return the first truthy answer of `condition`, evaluated at every change in the namespace.

        Each kind has a watch of its own, and one may lag: a plan could be seen to succeed before the world
        with which it did. So the history is brought up to date before the answer is returned.
        """
        deadline = time.monotonic() + within_seconds
        with self._changed:
            while not (answer := condition()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Timeout(f"not within {within_seconds} s: {what}\n{self.describe()}")
                self._changed.wait(min(left, LOOK_AGAIN_SECONDS))
        self._catch_up()
        return answer

    def describe(self) -> str:
        """The namespace in a few lines, for messages of failed tests."""
        lines = []
        for name, job in self.objects(Kind.JOB).items():
            status = job.get("status", {})
            lines.append(f"job {name}: {status.get('phase')} rendezvous={status.get('rendezvous')}")
            lines += [f"  {_condition(condition)}" for condition in status.get("conditions", [])]
            lines += [f"  {_condition(warning)}" for warning in status.get("warnings", [])]
        for check in self.checks():
            lines += _described_check(check)
        for name, plan in self.objects(Kind.PLAN).items():
            status = plan.get("status", {})
            lines.append(f"scale plan {name}: {status.get('phase')}")
            lines += [f"  {_condition(condition)}" for condition in status.get("conditions", [])]
        for name, worker in sorted(self.objects(Kind.WORKER).items()):
            status = worker.get("status", {})
            agent = status.get("agent") or {}
            shown = {
                key: agent.get(key) for key in ("state", "observedRound", "progress", "failure", "check")
            }
            lines.append(f"worker {name}: {status.get('phase')} {status.get('message', '')} agent={shown}")
        for name, pod in sorted(self.objects(Kind.POD).items()):
            status = pod.get("status", {})
            lines.append(f"pod {name}: {status.get('phase')} on {pod['spec'].get('nodeName')}")
        events = sorted(self.objects(Kind.EVENT).values(), key=lambda e: e.get("lastTimestamp") or "")
        lines += [
            f"event {e['involvedObject'].get('name')} {e.get('reason')}: {e.get('message')}"
            for e in events[-15:]
        ]
        return "\n".join(lines)

    def _follow(self, api: Api, kind: Kind) -> None:
        """List, then watch from there; list again only when the server has forgotten the place."""
        version: str | None = None
        while not self._closed.is_set():
            try:
                if version is None:
                    version = self._relist(api, kind)
                for event in api.watch(kind, self.namespace, version):
                    if self._closed.is_set():
                        break
                    if event["type"] == "ERROR":
                        version = None
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._record(kind, event)
            except Refused as error:
                if error.status == requests.codes.gone:
                    version = None
                self._closed.wait(RECONNECT_SECONDS)
            except (requests.RequestException, ValueError):
                self._closed.wait(
                    RECONNECT_SECONDS
                )  # the API server may be down: that is what scenarios do to it
        api.close()

    def _catch_up(self) -> None:
        """Wait, boundedly, until the watches have sent all that the API server has now."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        for kind in WATCHED:
            try:
                listed = self._api.list(kind, self.namespace)
            except (Refused, requests.RequestException):
                return
            with self._changed:
                self._changed.wait_for(
                    partial(self._has_caught_up, kind, listed), deadline - time.monotonic()
                )

    def _has_caught_up(self, kind: Kind, listed: Object) -> bool:
        """Whether a watch has come as far as a list: its changes come in order, its deletions too.

        The versions of one kind are compared as numbers, as Kubernetes has allowed since KEP-5504.
        """
        names = {item["metadata"]["name"] for item in listed["items"]}
        gone = [thing for name, thing in self._current[kind].items() if name not in names]
        return self._versions[kind] >= max(map(_version, listed["items"]), default=0) and not any(
            _version(thing) <= _version(listed) for thing in gone
        )

    def _relist(self, api: Api, kind: Kind) -> str:
        answer = api.list(kind, self.namespace)
        with self._changed:
            self._current[kind] = {item["metadata"]["name"]: item for item in answer["items"]}
            self.history[kind] += answer["items"]
            self._versions[kind] = _version(answer)
            self._changed.notify_all()
        return str(answer["metadata"]["resourceVersion"])

    def _record(self, kind: Kind, event: Object) -> None:
        if event["type"] == "BOOKMARK":
            return
        name = event["object"]["metadata"]["name"]
        with self._changed:
            self.history[kind].append(event["object"])
            self._versions[kind] = _version(event["object"])
            if event["type"] == "DELETED":
                self._current[kind].pop(name, None)
            else:
                self._current[kind][name] = event["object"]
            self._changed.notify_all()


def _version(thing: Object) -> int:
    return int(thing["metadata"]["resourceVersion"])


def _described_check(check: Object) -> list[str]:
    status = check.get("status", {})
    rounds = [[(group["members"], group["passed"]) for group in r["groups"]] for r in rounds_of(status)]
    lines = [
        f"node check {check['metadata']['name']}: {status.get('phase')} round={status.get('round')} {rounds}"
    ]
    lines += [f"  {_condition(condition)}" for condition in status.get("conditions", [])]
    lines += [f"  {r['node']} {r['verdict']}: {r.get('message')}" for r in status.get("nodeResults", [])]
    return lines


def _condition(condition: Object) -> str:
    return " ".join(str(condition.get(key, "")) for key in ("type", "status", "reason", "message"))
