"""Why a Pod does not start: what its status says, and how often its Events are read."""

from __future__ import annotations

from typing import Any, cast

import pytest

from controller.client import AsyncClient
from controller.errors import Forbidden
from controller.resources import PODS
from crds import names
from crds.elasticworker import ElasticWorkerStatus, WorkerPhase
from reconcilers.observed.start import (
    AGAIN_SECONDS,
    ASK_AFTER_SECONDS,
    LATE_SECONDS,
    NOTHING,
    STARTED,
    Hindrance,
    lacks_key,
    newest_warning,
)
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.shapes import kept_of_pod
from reconcilers.worker.maker import LatePods
from reconcilers.worker.worker_status import Observation, observe
from tests.reconcilers.build import NOW, job, later, pod, worker
from tests.reconcilers.caches import shaped_cache, tools_of
from tests.reconcilers.judging import judge, warnings
from tests.reconcilers.observing import observation

JSON = dict[str, Any]


def waits(reason: str, message: str = "") -> JSON:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(0, "Pending", containerStatuses=[{"name": "main", "state": state}])


def after(*seen: Observation) -> ElasticWorkerStatus:
    """The status of a worker when all of this has been observed."""
    found = worker(0, WorkerPhase.PENDING)
    for second, each in enumerate(seen):
        found = found.model_copy(update={"status": observe(found, each, later(second))})
    return found.status


def started(status: ElasticWorkerStatus) -> Hindrance | None:
    known = next((c for c in status.conditions if c.type == STARTED), None)
    return None if known is None else Hindrance(known.reason, known.message)


def test_an_image_that_is_tried_again_and_again_says_the_same_all_the_time() -> None:
    failed = observation(pod=waits("ErrImagePull", "registry/x: not found"))
    backs_off = observation(pod=waits("ImagePullBackOff", 'Back-off pulling image "x"'))
    once = after(failed)
    said = "main: ErrImagePull: registry/x: not found (the Pod has no pull secret)"
    assert started(once) == ("ImagePullBackOff", said)
    assert after(failed, backs_off, failed, backs_off).conditions == once.conditions


def test_an_image_that_cannot_be_pulled_is_told_with_the_pods_pull_secrets() -> None:
    denied = waits("ImagePullBackOff", "401 Unauthorized")
    denied["spec"]["imagePullSecrets"] = [{"name": "registri"}, {"name": "mirror"}]
    said = "main: ImagePullBackOff: 401 Unauthorized (pull secrets of the Pod: registri, mirror)"
    assert started(after(observation(pod=kept_of_pod(denied)))) == ("ImagePullBackOff", said)


def test_a_pod_whose_key_was_deleted_says_what_to_do() -> None:
    missing = f'secret "{names.key_secret("uid-digits")}" not found'
    waiting = waits("CreateContainerConfigError", missing)
    said = started(after(observation(pod=waiting)))
    assert said is not None and lacks_key(waiting)
    assert said.message.startswith(f"main: CreateContainerConfigError: {missing}: it was deleted")
    assert said.message.endswith("suspend and resume the job")
    of_check = waiting | {"metadata": waiting["metadata"] | {"labels": {names.LABEL_CHECK: "nightly"}}}
    said = started(after(observation(pod=of_check)))
    assert said is not None and said.message.endswith("make the NodeCheck again")
    assert not lacks_key(waits("CreateContainerConfigError", 'secret "mine" not found'))


def test_what_an_event_said_holds_until_the_pod_starts() -> None:
    creating, runs = observation(pod=waits("ContainerCreating")), observation(pod=pod(0, "Running"))
    warned = observation(pod=waits("ContainerCreating"), warning=Hindrance("FailedMount", "no secret"))
    assert started(after(creating)) is None
    told = after(creating, warned, creating)
    assert started(told) == ("FailedMount", "no secret") and told.message == "no secret"
    running = after(warned, runs)
    assert started(running) is None and running.message == ""


def test_what_is_over_by_a_later_reading_of_the_events_is_not_told_any_more() -> None:
    creating = observation(pod=waits("ContainerCreating"))
    warned = observation(pod=waits("ContainerCreating"), warning=Hindrance("FailedMount", "no secret"))
    read = observation(pod=waits("ContainerCreating"), warning=NOTHING)
    over = after(warned, creating, read)
    assert started(over) is None and over.message == ""
    assert started(after(observation(pod=waits("ErrImagePull")), read, creating)) is None
    assert started(after(observation(pod=waits("ErrImagePull")), creating)) is not None


def event(type_: str, reason: str, message: str, second: int, reporter: str = "kubelet") -> JSON:
    when = f"2026-01-01T12:00:{second:02}Z"
    found = {"type": type_, "reason": reason, "message": message, "lastTimestamp": when}
    return found | {"source": {"component": reporter}}


UNPLACED = event("Warning", "FailedScheduling", "no node", 1, "default-scheduler")
NO_VOLUME = event("Warning", "FailedMount", "no secret", 2)
ATTACHED = event("Warning", "FailedAttachVolume", "elsewhere", 2, "attachdetach-controller")
NO_SANDBOX = event("Warning", "FailedCreatePodSandBox", "no address", 2)
CHANGED = event("Normal", "SandboxChanged", "made again", 3)
PULLING = event("Normal", "Pulling", "image", 4)
NEWER = {"type": "Warning", "reason": "FailedMount", "reportingComponent": "kubelet", "source": {}} | {
    "eventTime": "2026-01-01T12:00:09.000000Z"
}


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([], NOTHING),
        ([UNPLACED], NOTHING),
        ([UNPLACED, PULLING], NOTHING),
        ([UNPLACED, NO_VOLUME], ("FailedMount", "no secret")),
        ([NO_VOLUME, event("Warning", "Late", "x", 9, "someone")], ("FailedMount", "no secret")),
        ([NO_VOLUME, PULLING], NOTHING),
        ([ATTACHED], ("FailedAttachVolume", "elsewhere")),
        ([CHANGED, NO_SANDBOX], ("FailedCreatePodSandBox", "no address")),
        ([PULLING, NEWER], ("FailedMount", "")),
    ],
)
def test_the_last_word_of_who_works_on_the_pod_counts_if_it_is_a_warning(
    events: list[JSON], wanted: Hindrance
) -> None:
    assert newest_warning(events) == wanted == newest_warning(events[::-1])


class Server:
    """Has one Event of each Pod, and counts who asks."""

    def __init__(self) -> None:
        self.asked = 0
        self.seconds = 0.0
        self.refuses = False
        self.cache = shaped_cache(cast(AsyncClient, self))
        self.owner = {
            "metadata": {"name": "digits", "namespace": "default", "uid": "job", "resourceVersion": "1"}
        }
        self.cache.store(ELASTICJOBS).apply(self.owner)
        self.late = LatePods(tools_of(self.cache, self, clock=Clock(monotonic=lambda: self.seconds)))

    async def list_page(self, resource: Any, namespace: str, *, field_selector: str, **_: Any) -> JSON:
        self.asked += 1
        if self.refuses:
            raise Forbidden(403, "Forbidden", "no list")
        events = [
            event("Normal", "Pulling", "another's", 8),
            event("Warning", "FailedMount", "old", 0),
            event("Warning", "FailedMount", "new", 9),
        ]
        return {"items": events}

    def pods(self, number: int) -> list[JSON]:
        made = [placed(index) for index in range(number)]
        for each in made:
            self.cache.store(PODS).apply(each)
        return made


def placed(index: int, **metadata: Any) -> JSON:
    found = pod(index, "Pending")
    named = {"namespace": "default", "resourceVersion": "1"}
    return found | {"metadata": found["metadata"] | named | metadata, "spec": {"nodeName": "node-0"}}


async def test_the_newest_warning_of_a_late_pod_is_read() -> None:
    server = Server()
    (late,) = server.pods(1)
    assert await server.late.hindrance_of(late, server.owner) == (None, LATE_SECONDS)
    server.seconds = LATE_SECONDS
    assert await server.late.hindrance_of(late, server.owner) == (("FailedMount", "new"), AGAIN_SECONDS)


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"name": "fetch"}, "the init container fetch still runs"),
        (
            {"name": "mesh", "restartPolicy": "Always"},
            "the native sidecar mesh runs and its startupProbe has not passed",
        ),
    ],
)
async def test_a_container_that_runs_before_training_is_named_once_it_is_late(
    container: JSON, words: str
) -> None:
    server = Server()
    (late,) = server.pods(1)
    running = {"name": container["name"], "state": {"running": {}}, "started": False}
    late["spec"]["initContainers"] = [container]
    late["status"] |= {
        "initContainerStatuses": [running],
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    assert await server.late.hindrance_of(late, server.owner) == (None, LATE_SECONDS)
    server.seconds = LATE_SECONDS
    named, _ = await server.late.hindrance_of(late, server.owner)
    assert named == ("PodInitializing", words)
    assert not server.asked
    of = worker(phase=WorkerPhase.PENDING)
    status = observe(of, observation(pod=late, warning=named), NOW)
    shown, _ = judge(job(replicas=1), workers=[of.model_copy(update={"status": status})])
    assert words in warnings(shown)["WorkersNotStarted"].message
    late["status"]["initContainerStatuses"] = []
    after = observe(of.model_copy(update={"status": status}), observation(pod=late), NOW)
    assert not after.message, "what ran before has ended"


def test_pods_that_may_wait_for_the_same_are_counted_beside_the_one_whose_events_were_read() -> None:
    why = {"type": "Started", "status": "False", "reason": "FailedMount", "message": "no ConfigMap code"}
    late = worker(0, WorkerPhase.PENDING, conditions=[why | {"lastTransitionTime": NOW}])
    others = [worker(1, WorkerPhase.PENDING), worker(2), worker(3, WorkerPhase.PENDING, nodeName=None)]
    shown, _ = judge(job(replicas=4), workers=[late, *others])
    said = warnings(shown)["WorkersNotStarted"].message
    assert said.startswith("1 Pod cannot start: no ConfigMap code (digits-worker-0, since ")
    assert said.endswith("; 1 more Pod has not started yet"), "not the one that runs, or has no node"


async def test_ten_thousand_late_pods_of_a_job_ask_once_in_a_while() -> None:
    server = Server()
    pods = server.pods(10_000)
    for second in (0.0, LATE_SECONDS, LATE_SECONDS + 1):
        server.seconds = second
        for each in pods:
            await server.late.hindrance_of(each, server.owner)
    assert server.asked == 1
    server.seconds += ASK_AFTER_SECONDS[0]
    await server.late.hindrance_of(pods[0], server.owner)
    assert server.asked == 1, "another has its turn"
    await server.late.hindrance_of(pods[1], server.owner)
    assert server.asked == 2


async def test_pods_that_stay_late_are_asked_about_ever_more_rarely() -> None:
    server = Server()
    pods = server.pods(3)
    asked_at = []
    for second in range(1_000):
        server.seconds, before = float(second), server.asked
        for each in pods:
            await server.late.hindrance_of(each, server.owner)
        asked_at += [second] * (server.asked - before)
    assert asked_at == [10, 20, 80, 380, 680, 980]


async def test_who_may_not_read_events_goes_on_without() -> None:
    server = Server()
    server.refuses = True
    (late,) = server.pods(1)
    await server.late.hindrance_of(late, server.owner)
    server.seconds = LATE_SECONDS
    assert await server.late.hindrance_of(late, server.owner) == (None, AGAIN_SECONDS)


async def test_a_pod_that_says_why_itself_or_is_to_go_is_not_asked_about() -> None:
    server = Server()
    leaving = placed(0, deletionTimestamp="2026-01-01T12:00:00Z")
    for each in (
        waits("ErrImagePull") | {"spec": {"nodeName": "a"}},
        pod(1, "Pending") | {"spec": {}},
        leaving,
    ):
        assert await server.late.hindrance_of(each, server.owner) == (None, None)
