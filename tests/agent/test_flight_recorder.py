"""What NCCL's recorder says of collectives, as torch 2.11 on an H100 has written it."""

from __future__ import annotations

import os
import pickle
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from agent.monitor import flight_recorder
from agent.monitor.flight_recorder import Question, Record, read, variables


def entry(number: int, state: str, **other: Any) -> dict[str, Any]:
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4]],
        "state": state,
        "is_p2p": False,
        **other,
    }


def written(*entries: dict[str, Any]) -> bytes:
    return pickle.dumps({"version": "2.10", "entries": list(entries)}, protocol=2)


def test_who_has_joined_all_that_it_enqueued_waits_for_nothing() -> None:
    assert read(written(entry(1, "completed"), entry(2, "completed"))) == Record("")


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_the_first_that_is_not_completed_is_what_is_waited_for(state: str) -> None:
    found = read(written(entry(1, "completed"), entry(2, state), entry(3, "scheduled")))
    assert found == Record("all_reduce 2 of [4] in default_pg")


class Harmful:
    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    "data",
    [b"", written(entry(1, "completed"))[:-9], b"text", written(), pickle.dumps([1]), pickle.dumps({}),
     written({"state": "scheduled"}), pickle.dumps(Harmful())],
)  # fmt: skip
def test_what_is_no_record_is_none(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        read(data)


@pytest.mark.parametrize(
    "data",
    [b"\x80\x02K\x01r\xff\xff\xff\x7f.", b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
     b"\x80\x05\x8e" + (1 << 40).to_bytes(8, "little") + b".", written(entry(1, "started", more="x" * (8 << 20)))],
    ids=["a place in the memo", "an array of bytes", "bytes", "a long text"],
)  # fmt: skip
def test_what_is_no_record_takes_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, TypeError)):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.real
def test_a_process_is_asked_by_its_pipe_and_its_answer_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 5 answers in two writes; rank 6 has no NCCL."""
    monkeypatch.setattr(flight_recorder, "PATIENCE_SECONDS", 300.0)
    stem = variables(tmp_path, 0, {}, "2.13.0", tmp_path)["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
    os.mkfifo(f"{stem}5.pipe")
    reader = os.open(f"{stem}5.pipe", os.O_RDWR)  # as a writer too, so that a read waits for the question

    def answer() -> None:
        assert os.read(reader, 128)
        data = written(entry(3, "scheduled"))
        with (tmp_path / "logs" / "nccl_trace_rank_5").open("wb", buffering=0) as file:
            file.write(data[:20])
            file.write(data[20:])

    (tmp_path / "logs").mkdir()
    thread = threading.Thread(target=answer)
    thread.start()
    records = {0: tmp_path / "logs", 1: tmp_path / "logs"}
    assert Question(tmp_path, {0: 5, 1: 6}, records).answers() == {
        0: Record("all_reduce 3 of [4] in default_pg")
    }
    thread.join()
    os.close(reader)


@pytest.mark.parametrize(
    ("version", "file"),
    [("2.6.0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), ("2.9.1+cu128", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
     ("2.10.0a0+git12", "TORCH_FR_DUMP_TEMP_FILE"), ("2.13.0", "TORCH_FR_DUMP_TEMP_FILE")],
)  # fmt: skip
def test_the_names_are_those_of_that_torch(version: str, file: str, tmp_path: Path) -> None:
    found = variables(tmp_path, 2, {}, version, tmp_path / "logs")
    assert found[file] == f"{tmp_path}/logs/nccl_trace_rank_", "what NCCL writes by itself outlives the agent"
    assert not list(tmp_path.iterdir())
