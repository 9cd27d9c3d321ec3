"""A worker's status has at most 32 KB: the agent's half whatever is asked of it, and the controller's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import TypeAdapter

from agent.monitor.series import IN_SERIES
from agent.report.report import fitting
from crds.agent_report import (
    MAX_FIGURES,
    MAX_FRAMES,
    MAX_LOCAL_PROBES,
    MAX_NUMBERS,
    MAX_POINTS,
    MAX_REPORT_BYTES,
    MAX_ROUNDS,
    MAX_SENTENCE,
    MAX_SENTENCES,
    MAX_SHARDS_TEXT,
    MAX_STACKS,
    MAX_TEXT,
    Accelerators,
    AgentCheck,
    AgentCheckpointTrouble,
    AgentFailure,
    AgentReport,
    AgentState,
    AskedStacks,
    CheckpointMemory,
    FailureCause,
    PairOutcome,
    ProbeEnding,
    ProbeOutcome,
    RankStack,
    Resumed,
    RoundProgress,
    Series,
    SeriesPoint,
    ShardsReport,
    Slow,
    StepProgress,
    Usage,
)
from crds.checkpoint_files import MAX_TROUBLE, CheckpointTrouble, Tier
from crds.elasticworker import (
    MAX_EXIT_TEXT,
    MAX_LIFE_REASON,
    MAX_LIVES,
    MAX_MESSAGE,
    ElasticWorkerStatus,
    ExitClass,
    SlotLife,
    WorkerExit,
    WorkerPhase,
)
from crds.model import MAX_CONDITION_MESSAGE, Condition, ConditionStatus
from crds.progress_record import MAX_RESULT
from crds.shard_set import MAX_SHARD_REASON, MAX_SHARD_SETS
from tests.crds.go_json import go_bytes

NOW = datetime(2026, 11, 26, 12, 0, 0, 123_456, tzinfo=UTC)
READER = TypeAdapter(AgentReport)
GREAT = 123_456_789_012


def report(letter: str, sets: int) -> AgentReport:
    """Everything that an agent can say, at once, and each of its texts as long as it may be."""
    stacks = tuple(RankStack(99_990 + n, GREAT, True, letter * MAX_FRAMES) for n in range(MAX_STACKS))
    numbers = {f"number{n}".ljust(24, "x"): 0.123456789 for n in range(MAX_NUMBERS)}
    usage = dict.fromkeys(IN_SERIES, 123_456_789_000.0)
    point = SeriesPoint(GREAT, NOW, 99_999, 0.123456789, numbers, usage)
    sentences = (letter * MAX_SENTENCE,) * MAX_SENTENCES
    probe = ProbeOutcome(
        probe="intra_node",
        ending=ProbeEnding.UNAVAILABLE,
        reason=letter * MAX_SENTENCE,
        figures={f"figure_{n}_gbps": 123.456789 for n in range(MAX_FIGURES)},
        faults=sentences,
        notes=sentences,
        seconds=123.456,
    )
    figures = {"bus_gbps": 123.456789, "latency_us": 12.3456789}
    pair = PairOutcome(**{**vars(probe), "round": 3, "probe": "pair", "figures": figures})
    room = MAX_SHARDS_TEXT // max(sets, 1)
    pulled = ShardsReport(
        name="n" * 63,
        epoch=GREAT,
        size=GREAT,
        digest="d" * 64,
        retries=16,
        max_failed=GREAT,
        lease=GREAT,
        rest="9" * (room // 3),
        failed="9" * (room // 3),
        undone="9" * (room // 3),
        reason=letter * MAX_SHARD_REASON,
        restoration=GREAT,
    )
    failure = AgentFailure(
        sequence=9_999,
        round=GREAT,
        rank=99_999,
        exit_code=-11,
        signal="SIGSEGV",
        cause=FailureCause.HANG,
        step=GREAT,
        stacks=stacks,
        message=letter * MAX_TEXT,
        log_tail=letter * MAX_TEXT,
        time=NOW,
        after_seconds=123_456.789,
    )
    return AgentReport(
        incarnation=99_999,
        pod_uid="u" * 36,
        address="fd00:1234:5678:9abc:def0:1234:5678:9abc",
        store_port=65_535,
        local_world_size=4_096,
        observed_round=GREAT,
        state=AgentState.SUCCEEDED,
        since=NOW,
        failure=failure,
        progress=StepProgress(GREAT, NOW, GREAT, 123.456789),
        rounds=(RoundProgress(GREAT, GREAT, GREAT, 1234567.89, True, True, GREAT, GREAT),) * MAX_ROUNDS,
        series=Series(1_024, (point,) * MAX_POINTS, point),
        slow=Slow(NOW, GREAT, 123.456789, 12.3456789),
        usage=Usage(127.123456, GREAT, GREAT, 0.123456789, GREAT),
        memory=CheckpointMemory(GREAT, GREAT, 99_999, Resumed(GREAT, Tier.STORAGE, GREAT)),
        checkpoint_trouble=AgentCheckpointTrouble(CheckpointTrouble.SKIPPED, letter * MAX_TROUBLE),
        accelerators=Accelerators("nvidia", 8, "NVIDIA H100 80GB HBM3"),
        check=AgentCheck("u" * 36, (probe,) * MAX_LOCAL_PROBES, (pair,) * 4),
        result='"' * MAX_RESULT,
        asked_stacks=AskedStacks("r" * 64, NOW, stacks),
        shards=(pulled,) * sets or None,
    )


def controllers_part(letter: str) -> ElasticWorkerStatus:
    """The controller's part of a status, with its texts as long as they may be."""
    life = SlotLife(
        incarnation=99_999,
        node_name="n" * 63,
        created_at=NOW,
        running_at=NOW,
        ended_at=NOW,
        exit_class=ExitClass.DAMAGED_CHECKPOINT,
        reason=letter * MAX_LIFE_REASON,
    )
    end = WorkerExit(
        incarnation=99_999,
        exit_class=ExitClass.DAMAGED_CHECKPOINT,
        reason="x" * 256,
        exit_code=-11,
        rank=99_999,
        message=letter * MAX_EXIT_TEXT,
        log_tail=letter * MAX_EXIT_TEXT,
        node_name="n" * 63,
        pod_uid="u" * 36,
        time=NOW,
    )
    conditions = [
        Condition(
            type=type_,
            status=ConditionStatus.FALSE,
            reason="ImagePullBackOff",
            message=letter * MAX_CONDITION_MESSAGE,
            last_transition_time=NOW + timedelta(seconds=1),
        )
        for type_ in ("Scheduled", "Started", "AgentHeard", "ReportReadable", "Reconciled")
    ]
    return ElasticWorkerStatus(
        observed_incarnation=99_999,
        phase=WorkerPhase.FAILED,
        message=letter * MAX_MESSAGE,
        pod_name="p" * 63,
        pod_uid="u" * 36,
        node_name="n" * 63,
        topology=["t" * 63] * 3,
        restarts=dict.fromkeys(ExitClass, 99),
        restart_count=999,
        last_exit=end,
        history=[life] * MAX_LIVES,
        conditions=conditions,
    )


@pytest.mark.parametrize("letter", ["x", "ö", '"', "<", "\x01", "😀"])
@pytest.mark.parametrize("sets", [0, 1, MAX_SHARD_SETS])
def test_the_worst_report_leaves_half_of_32_kb_and_is_what_the_crd_takes(letter: str, sets: int) -> None:
    written = fitting(report(letter, sets))
    assert go_bytes(written) <= MAX_REPORT_BYTES
    read = READER.validate_python(written)
    assert read.failure is not None and (read.failure.sequence, read.failure.cause) == (9_999, "Hang")
    decided = [replace(each, reason="") for each in report(letter, sets).shards or ()]
    assert [replace(each, reason="") for each in read.shards or ()] == decided, "what decides is whole"
    assert go_bytes(controllers_part(letter).to_wire()) + MAX_REPORT_BYTES <= 32_768


def test_a_past_that_has_no_room_gives_up_the_usage_before_the_loss() -> None:
    usage = dict.fromkeys(IN_SERIES, 70_100_000_000.0)
    point = SeriesPoint(GREAT, NOW, 99_999, 0.123456789, {"loss": 1.23456789}, usage)
    full = report("x", 0)
    slim = replace(
        full, series=Series(1, (point,) * MAX_POINTS, point), check=None, asked_stacks=None, result=None
    )
    written = fitting(replace(slim, failure=None))
    assert READER.validate_python(written).series == slim.series
    assert slim.failure is not None
    written = fitting(replace(slim, failure=replace(slim.failure, stacks=(), message="x" * 512)))
    read = READER.validate_python(written).series
    assert read is not None and len(read.points) == MAX_POINTS
    assert [each.numbers for each in read.points] == [point.numbers] * MAX_POINTS
    assert not any(each.usage for each in read.points)
