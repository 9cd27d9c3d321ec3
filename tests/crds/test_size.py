"""How large an ElasticJob and its ElasticWorld can get: not with its workers, and not with its age."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import crds
from crds.elasticjob import ElasticJob
from crds.job_status import (
    MAX_EPISODE_MEMBERS,
    MAX_EPISODE_REASON,
    MAX_EPISODES,
    MAX_FAILURE,
    MAX_MESSAGE,
    MAX_SIGNATURE,
    MAX_WHY_NOT_MORE,
    MAX_WORLD_SIZES,
    ElasticJobStatus,
    Episode,
    EpisodeFailure,
    JobState,
)
from crds.model import MAX_CONDITION_MESSAGE
from crds.names import ANNOTATION_STACKS
from crds.rendezvous import MAX_WORLD_REASON, Rendezvous
from reconcilers.conditions.table import WARNINGS
from reconcilers.job.published import world_of
from reconcilers.observed.status_patch import StatusBeyondLimits, validated
from tests.crds.go_json import go_bytes

WORKERS = 10_000
NOW = datetime(2026, 11, 22, 8, 0, 0, 123_456, tzinfo=UTC)
TIME = NOW.isoformat().replace("+00:00", "Z")
CHANCE = random.Random(1)
CONDITIONS = {
    "Running": ("False", "Restarting"),
    "Suspended": ("False", "Resumed"),
    "WorldFormed": ("False", "Reforming"),
    "WorkersReady": ("False", "PodForbidden"),
    "Scaled": ("False", "Scaling"),
    "NodesChecked": ("Unknown", "Checking"),
    "ShardsDone": ("False", "ElementsFailed"),
    "Reconciled": ("True", "Recovered"),
}
EXPLAINED = ("WorldFormed", "WorkersReady", "Scaled", "ShardsDone", "NodesChecked")
"""Conditions with a message."""
USUAL_CHARACTERS = 110
"""Of a text that has room for more."""
REASONS = {
    "PodsNotAccepted": "PodForbidden",
    "WorkersNotStarted": "ImagePullBackOff",
    "WorkersUnscheduled": "Unschedulable",
    "CheckpointsFailing": "StorageFails",
}
WORKER = {"worker": "llm-pretraining-405b-worker-9312"}
DATA = {
    "WorkersNotStarted": WORKER | {"count": 9_312},
    "WorkersUnscheduled": WORKER | {"count": 9_312},
    "CheckpointsFailing": WORKER,
    "NonFiniteLoss": WORKER | {"round": 1_233, "step": 1_234_567},
    "Slow": {"step": 1_234_567, "secondsPerStep": 12.3},
    "WorkersGivenUp": {"count": 64},
    "TemplateChanged": {"count": 9_312},
}
OF_OTHER_JOBS = (
    "MasterReplicaIgnored",  # of DLRover's YAML
    "TFConfigKept",  # of one with parameter servers, which has no world
    "WorkersNotMade",  # of one that has hardly any
    *("NoSteps", "ProcessLingers"),  # of one that trains, or of one whose training is over
    "HeartbeatLate",  # instead of AgentsSilent
    "RanksBehind",  # only while there is a world
    "PatternsNotApplied",  # there from submission on, long before the worst day
)
"""Warnings that do not come together with all others."""
WARNING_TYPES = [kind.type for kind in WARNINGS if kind.type not in OF_OTHER_JOBS]
CLASSES = [
    "UserError",
    "OOM",
    "Killed",
    "Preempted",
    "NodeLost",
    "HardwareError",
    "CheckFailed",
    "Hang",
    "Unknown",
]


def some(number: int, of: int = WORKERS) -> list[int]:
    return sorted(CHANCE.sample(range(of), number))


def text_of(limit: int, full: str) -> str:
    return full * limit if full else "x" * min(limit, USUAL_CHARACTERS)


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    said = {"type": type_, "status": status, "reason": reason, "message": message}
    return said | {"lastTransitionTime": f"{NOW:%Y-%m-%dT%H:%M:%SZ}", "observedGeneration": 12}


def warning(type_: str, message: str) -> dict[str, Any]:
    more = {"reason": REASONS.get(type_), "data": DATA.get(type_)}
    found = {"type": type_, "message": message, "since": f"{NOW:%Y-%m-%dT%H:%M:%SZ}"}
    return found | {key: value for key, value in more.items() if value is not None}


def spec(*, grows: bool) -> dict[str, Any]:
    """Of a realistic size.

    Args:
        grows: into free room, which excludes standby workers.
    """
    growth = {"maxReplicas": 12_000} if grows else {"standby": 64}
    opportunistic = {"priorityClassName": "opportunistic", "probeSeconds": 60, "minEfficiency": 0.6}
    policy = {"elasticPolicy": {"opportunistic": opportunistic}} if grows else {}
    environment = [{"name": f"NCCL_OPTION_{i}", "value": "some-value"} for i in range(8)]
    container = {
        "name": "main",
        "image": "registry.example.com/research/pretraining:2026-11-20-3f2c1d7",
        "command": ["torchrun", "--nproc-per-node=8", "train.py", "--config=configs/405b.yaml"],
        "env": environment,
        "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1800Gi", "rdma/ib": 8}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "pretraining-data"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Gi"}},
    ]
    template = {"spec": {"containers": [container], "volumes": volumes}}
    worker = {"replicas": WORKERS, "minReplicas": 9_000, "template": template}
    return {"replicaSpecs": {"worker": worker | growth}, "nodeCheck": {"enabled": True}} | policy


def object_of(status: ElasticJobStatus) -> dict[str, Any]:
    metadata = {
        "name": "llm-pretraining-405b",
        "namespace": "research",
        "uid": "0b6c1c43-27b5-4f0e-9a1c-3f6f5e3f2c11",
        "resourceVersion": "184467440737",
        "generation": 12,
        "creationTimestamp": TIME,
    }
    kind = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob"}
    grows = status.growth is not None
    told = validated(status)
    return {**kind, "metadata": metadata, "spec": spec(grows=grows), "status": told}


def size(status: ElasticJobStatus) -> int:
    return go_bytes(object_of(status))


def of_growth(*, full: str) -> dict[str, Any]:
    """What a job with elasticPolicy.opportunistic has besides, and what workers that are gone have left."""
    return {
        "scaling": {
            "replicas": WORKERS + 64,
            "by": "ScalePlan llm-pretraining-405b-auto-172",
            "at": TIME,
            "base": WORKERS,
        },
        "growth": {
            "base": WORKERS,
            "replicas": WORKERS + 64,
            "askedAt": TIME,
            "grownFrom": WORKERS,
            "ceiling": WORKERS + 64,
            "notBefore": TIME,
            "reason": text_of(MAX_WHY_NOT_MORE, full),
            "inVain": 2,
        },
        "usage": {
            "round": 1_233,
            "worlds": [
                {"workers": count, "steps": 1_234_567, "seconds": 12_345_678.123, "samplesPerStep": 16_384}
                for count in range(WORKERS, WORKERS + MAX_WORLD_SIZES)
            ],
            "memoryPeakBytes": {"worker": 1_832_735_283_200},
        },
        "departed": {
            "restarts": dict.fromkeys(CLASSES, 12),
            "failures": dict.fromkeys(CLASSES, 12),
            "leaving": {"worker": list(range(64))},
        },
    }


def busy(world: Rendezvous, *, full: str, **more: Any) -> ElasticJobStatus:
    """A status in which everything is told that can be.

    Args:
        full: a letter, to have every text as long as it may be, of that alone.
    """

    def text(limit: int) -> str:
        return text_of(limit, full)

    episodes = [
        Episode(
            state=state,
            since=NOW + timedelta(seconds=number),
            round=1_000 + number,
            size=WORKERS,
            members=text(MAX_EPISODE_MEMBERS),
            reason=text(MAX_EPISODE_REASON),
            failure=None
            if state is JobState.TRAINING
            else EpisodeFailure(
                worker="llm-pretraining-405b-worker-5118",
                exit_class="HardwareError",
                round=1_000 + number,
                message=text(MAX_EPISODE_REASON),
                time=NOW,
            ),
        )
        for number, state in enumerate([JobState.TRAINING, JobState.RECOVERING] * MAX_EPISODES)
    ][-MAX_EPISODES:]
    return ElasticJobStatus.model_validate(
        {
            "observedGeneration": 12,
            "phase": "Restarting",
            "reason": "ImagePullBackOff",
            "message": text(MAX_MESSAGE),
            "conditions": [
                condition(type_, *states, text(MAX_CONDITION_MESSAGE) if type_ in EXPLAINED else "")
                for type_, states in CONDITIONS.items()
            ],
            "warnings": [warning(type_, text(MAX_CONDITION_MESSAGE)) for type_ in WARNING_TYPES],
            "profile": {"outcome": "Taken", "message": text(MAX_CONDITION_MESSAGE)},
            "replicaStatuses": {
                "worker": {"desired": WORKERS, "pending": 300, "active": 9_700, "failed": 64, "standby": 12}
            },
            "rendezvous": world,
            "scaling": {"replicas": WORKERS, "by": "ScalePlan move-off-rack-17", "at": TIME},
            "scaleRequest": "0b6c1c43-27b5-4f0e-9a1c-3f6f5e3f2c11",
            "resources": {"worker": {"limits": {"memory": "1900Gi"}, "requests": {"memory": "1900Gi"}}},
            "activeCheck": "llm-pretraining-405b-check-7",
            "suspectedAt": TIME,
            "replicas": WORKERS,
            "selector": "elastic.iml.github.io/job-name=llm-pretraining-405b,elastic.iml.github.io/replica-type=worker",
            "restarts": dict.fromkeys(CLASSES, 1_234),
            "failures": dict.fromkeys(CLASSES, 1_234),
            "startTime": TIME,
            "lastFailure": {
                "worker": "llm-pretraining-405b-worker-5118",
                "rank": 40_944,
                "exitClass": "HardwareError",
                "exitCode": -6,
                "message": text(MAX_FAILURE),
                "round": 1_234,
                "step": 1_234_567,
                "time": TIME,
                "domain": "x" * 63,
            },
            "failureBudget": {
                "step": 1_234_567,
                "spent": dict.fromkeys(CLASSES[:4], 3),
                "signature": text(MAX_SIGNATURE),
                "alike": 2,
                "consequences": 3,
                "heldUntil": TIME,
            },
            "goodput": {
                "state": "Recovering",
                "since": TIME,
                "seconds": {state.value: 1_234_567.123456 for state in JobState},
                "firstStep": 0,
                "lastStep": 1_234_567,
                "stepsRedone": 12_345,
                "stepsTimed": 1_234_567,
                "steppingSeconds": 12_345_678.123456,
                "round": 1_234,
                "latest": {"round": 1_234, "firstStep": 1, "lastStep": 9, "steppingSeconds": 1_234.123456},
                "ratio": 0.912345,
            },
            "history": episodes,
        }
        | of_growth(full=full)
        | more
    )


def world(members: list[int], incarnations: list[int], *, full: str) -> Rendezvous:
    return Rendezvous(
        round=1_234,
        phase="Reforming",
        members=members,
        incarnations=incarnations,
        world_size=8 * len(members),
        master_address="10.123.123.123",
        master_port=45_678,
        reason=text_of(MAX_WORLD_REASON, full),
        formed_at=NOW,
        reforming_since=NOW,
        broken_round=1_234,
    )


def aged(members: list[int], relaunches: int) -> list[int]:
    """Incarnations after so many relaunches, of whichever worker."""
    counts = dict.fromkeys(range(max(members) + 1), 1)
    for index in CHANCE.choices(list(counts), k=relaunches):
        counts[index] += 1
    return [counts[index] for index in members]


def of_the_day(members: list[int], incarnations: list[int], *, full: str) -> ElasticJobStatus:
    """A rack is retired, slots leave and move, nodes are checked, and a shard set nears its end."""
    retired, moves = some(100), {"sources": some(100), "targets": list(range(WORKERS + 100, WORKERS + 200))}
    departed = {
        "restarts": dict.fromkeys(CLASSES, 12),
        "failures": dict.fromkeys(CLASSES, 12),
        "leaving": {"worker": list(range(0, 2_000, 2))},
    }
    return busy(
        world(members, incarnations, full=full),
        full=full,
        retired={"worker": retired},
        migrations={"worker": moves},
        departed=departed,
    )


def world_size(status: ElasticJobStatus) -> int:
    """Bytes of the ElasticWorld that agents of this job watch."""
    job = object_of(status)
    annotations = {ANNOTATION_STACKS: TIME}
    found = world_of(job | {"metadata": job["metadata"] | {"annotations": annotations}})
    return go_bytes(found)


def month_old() -> tuple[list[int], list[int]]:
    """Members and incarnations after 500 relaunches, while 40 slots are empty."""
    members = [index for index in range(WORKERS) if index not in {*some(40)}]
    return members, aged(members, 500)


def in_runs(workers: int, length: int) -> list[int]:
    runs = [range(first, min(first + length, workers)) for first in range(0, workers, length)]
    CHANCE.shuffle(runs)
    return [index for run in runs for index in run]


SCATTERED = CHANCE.sample(range(2_000), 2_000)
WORST_DAYS: dict[str, tuple[list[int], list[int]]] = {
    "every second slot is empty, and no two incarnations are the same": (
        [*range(0, WORKERS, 2)],
        CHANCE.sample(range(1, WORKERS // 2 + 1), WORKERS // 2),
    ),
    "they are in runs of a domain, in any order, each relaunched up to 99 times": (
        in_runs(WORKERS, 18),
        [CHANCE.randint(1, 99) for _ in range(WORKERS)],
    ),
    "2,000 are scattered over the domains, and no two incarnations are the same": (
        [index for first in range(0, 2_000, 18) for index in sorted(SCATTERED[first : first + 18])],
        CHANCE.sample(range(1, WORKERS // 2 + 1), 2_000),
    ),
}


@pytest.mark.parametrize("day", WORST_DAYS)
def test_ten_thousand_workers_on_their_worst_day_have_a_job_of_32_kb_and_a_world_of_16(day: str) -> None:
    status = of_the_day(*WORST_DAYS[day], full="")
    assert size(status) <= 32 << 10
    assert world_size(status) <= 16 << 10
    found = ElasticJobStatus.model_validate(object_of(status)["status"])
    assert (found.rendezvous, found.retired, found.migrations, found.departed) == (
        status.rendezvous,
        status.retired,
        status.migrations,
        status.departed,
    )


@pytest.mark.parametrize("letter", ["x", "\x01", "😀"])
def test_every_text_and_list_at_its_limit_after_a_year_of_relaunches(letter: str) -> None:
    """Half of the slots are empty, by chance, and 30,000 Pods were replaced."""
    members = some(WORKERS // 2)
    assert size(of_the_day(members, aged(members, 3 * WORKERS), full=letter)) <= 32 << 10


def test_the_world_of_ten_thousand_workers_has_4_kb_on_an_ordinary_day_and_is_readable() -> None:
    members, incarnations = month_old()
    there = world(members, incarnations, full="x")
    assert world_size(ElasticJobStatus(rendezvous=there)) <= 4 << 10
    assert there.to_wire()["members"].count(",") >= 20, "ranges, as people write them"


def test_a_steady_job_of_ten_thousand_workers_is_as_large_as_one_of_ten() -> None:
    few, many = (
        size(ElasticJobStatus(rendezvous=world(members, [2] * len(members), full="")))
        for members in (list(range(10)), list(range(WORKERS)))
    )
    assert many - few < 20


def test_what_is_written_is_within_its_limits_or_the_field_is_named() -> None:
    status = ElasticJobStatus(rendezvous=Rendezvous(reason="fine"))
    beyond = Rendezvous().model_copy(update={"reason": "x" * (MAX_WORLD_REASON + 1)})
    assert validated(status)["rendezvous"]["reason"] == "fine"
    with pytest.raises(StatusBeyondLimits, match=r"status\.rendezvous\.reason is beyond its limit"):
        validated(status.model_copy(update={"rendezvous": beyond}))
    episodes = [Episode(state=JobState.TRAINING, since=NOW)] * (MAX_EPISODES + 1)
    with pytest.raises(StatusBeyondLimits, match=r"status\.history"):
        validated(status.model_copy(update={"history": episodes}))
    torn = Rendezvous(members=[1, 2], incarnations=[1, 1]).model_copy(update={"members": [2, 2]})
    with pytest.raises(StatusBeyondLimits, match=r"status\.rendezvous"):
        validated(status.model_copy(update={"rendezvous": torn}))


def test_what_was_written_with_wider_limits_is_read_and_cut() -> None:
    old = {
        "history": [{"state": "Training", "since": TIME, "round": n, "reason": "x" * 256} for n in range(50)],
        "conditions": [condition("NodesChecked", "True", "Fresh", "x" * 4_096)],
        "lastFailure": {"worker": "w", "exitClass": "OOM", "message": "x" * 8_192, "time": TIME},
    }
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    specs = {"worker": {"template": template}}
    job = {"metadata": {"name": "old"}, "spec": {"replicaSpecs": specs}, "status": old}
    status = ElasticJob.model_validate(job).status
    assert [episode.round for episode in status.history] == list(range(50))[-MAX_EPISODES:]
    assert validated(status)["lastFailure"]["message"].endswith("…")


def most_bytes(schema: dict[str, Any]) -> int:
    """The size of the largest value that a schema takes, of characters of one byte each."""
    if "enum" in schema:
        return max(len(str(each)) for each in schema["enum"]) + 2
    if schema["type"] == "object" and "properties" in schema:
        return 2 + sum(len(name) + 4 + most_bytes(of) for name, of in schema["properties"].items())
    if schema["type"] == "object":
        return 2 + schema["maxProperties"] * (LONGEST_NAME + most_bytes(schema["additionalProperties"]))
    if schema["type"] == "array":
        return 2 + int(schema["maxItems"]) * (1 + most_bytes(schema["items"]))
    if schema["type"] == "string":
        return LONGEST_TIME if schema.get("format") == "date-time" else 2 + int(schema["maxLength"])
    return LONGEST_NUMBER


LONGEST_NAME, LONGEST_TIME, LONGEST_NUMBER = 64, 40, 24


def test_no_writer_makes_the_status_of_a_worker_larger_than_half_a_mb() -> None:
    """An agent and the controller keep to 32 KB (tests/agent/test_report_size.py); this is for all others."""
    (manifest,) = (each for each in crds.manifests() if each["spec"]["names"]["kind"] == "ElasticWorker")
    status = manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert most_bytes(status) < 500_000
