"""What torch's recorder says of collectives, as torch 2.11 on an H100 and 2.13 without a GPU have written it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent.monitor.flight_recorder import (
    HANDLERS,
    MAX_BYTES,
    CollectiveRecord,
    RecordQuery,
    ask,
    entries,
    read,
    variables,
)
from agent.warm.warm_parent import without_round_variables

SOCKET = Path("/run/dlr/recorder.0")


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


def test_a_rank_that_has_joined_all_that_it_enqueued_waits_for_nothing() -> None:
    assert read([entry(1, "completed"), entry(2, "completed")]) == CollectiveRecord("")


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_the_first_that_is_not_completed_is_what_is_waited_for(state: str) -> None:
    found = read([entry(1, "completed"), entry(2, state), entry(3, "scheduled")])
    assert found == CollectiveRecord("all_reduce 2 of [4] in default_pg")


def test_what_nccl2_has_completed_is_retired_and_keeps_its_state() -> None:
    """Of torch 2.14 and newer: the hooks that record it see no event of the device."""
    done = entry(1, "scheduled", profiling_name="nccl2:all_gather", retired=True)
    waits = entry(2, "scheduled", profiling_name="nccl2:_reduce_scatter_base", retired=False)
    assert read([done]) == CollectiveRecord("")
    assert read([done, waits]) == CollectiveRecord("reduce_scatter_base 2 of [4] in default_pg")


def test_gloos_collectives_say_nothing_since_its_host_waits_for_them() -> None:
    waits = entry(2, "scheduled", profiling_name="gloo:recv 1<-0", retired=False, is_p2p=True)
    assert read([waits]) is None
    assert read([waits, entry(1, "completed")]) == CollectiveRecord("")
    assert read([]) is None


@pytest.mark.parametrize(
    "body", [b"text", b"[1]", b"{}", b'{"entries": 3}', b"[" * 100_000, b'{"entries": [{"state": "x"}]}', b"\xff"]
)  # fmt: skip
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError, RecursionError)):
        read(entries(body))


WAITS = """
import os, sys, torch, torch.distributed as dist
from agent.torch_compat.training import serve_records
rank = int(sys.argv[2])
os.environ["DLR_RECORDER_SOCKET"] = sys.argv[1] + f"/recorder.{rank}"
serve_records(os.environ)
serve_records(os.environ)  # as `dlr.report` does once more
if os.fork() == 0:
    sys.exit()  # of a server without threads, an end must not wait for them
assert os.wait()[1] == 0
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
dist.all_reduce(torch.ones(3))
print("ready", flush=True)
if rank == 0:
    dist.broadcast(torch.ones(3), 1)
sys.stdin.read()
"""


@pytest.mark.real
def test_processes_answer_while_they_wait_in_a_collective(tmp_path: Path) -> None:
    """NCCL needs GPUs; gloo's records come by the same server, which is the only difference."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", WAITS, str(tmp_path), str(rank)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        assert [rank.stdout and rank.stdout.readline() for rank in ranks] == ["ready\n", "ready\n"]

        def answer(rank: int) -> list[tuple[str, bool]]:
            body = ask(tmp_path / f"recorder.{rank}", HANDLERS[1], time.monotonic() + 300)
            return [(each["profiling_name"].split()[0], each["retired"]) for each in entries(body)]

        while len(answer(0)) < 2:  # it is on its way into the call
            assert ranks[0].poll() is None
        assert answer(0) == [("gloo:all_reduce", True), ("gloo:broadcast", False)]
        assert answer(1) == [("gloo:all_reduce", True)]
        assert ask(tmp_path / "recorder.0", "dump_nccl_trace_json", time.monotonic() + 300) == b"", (
            "no NCCL here"
        )
        assert RecordQuery({0: tmp_path / "recorder.0"}).answers() == {}
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.communicate()[1] for rank in ranks] == ["", ""], "nothing of ours is in the script's log"


@pytest.mark.real
def test_a_process_that_answers_anything_costs_nothing_but_its_time(tmp_path: Path) -> None:
    """The socket lies where a script may put one of its own."""
    path = tmp_path / "recorder.0"
    with socket.create_server(str(path), family=socket.AF_UNIX) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_BYTES + 1))

        thread = threading.Thread(target=answer)
        thread.start()
        found = ask(path, "any", time.monotonic() + 300)
        thread.join()
    assert found == b""
    assert ask(path, "any", time.monotonic()) == b"", "nobody listens any more"


def test_what_torch_reads_is_set_under_the_names_of_that_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    for version, file in (
        ("2.6.0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.9.1+cu128", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.10.0a0+git12", "TORCH_FR_DUMP_TEMP_FILE"),
        ("2.15.0", "TORCH_FR_DUMP_TEMP_FILE"),
    ):
        found = variables(SOCKET, {}, version, Path("/logs"))
        assert found[file] == "/logs/nccl_trace_rank_", "what NCCL writes by itself outlives the agent"
        sizes = [int(value) for name, value in found.items() if name.endswith("_BUFFER_SIZE")]
        assert sizes == [2_000] and not any("STACK" in name for name in found), "as much as with torch alone"
        assert found["DLR_RECORDER_SOCKET"] == str(SOCKET)
        assert without_round_variables(found) == {}, "no warm parent is renewed for them"
        users = variables(SOCKET, {file: "/mine"}, version, Path("/logs"))
        assert users == {"DLR_RECORDER_SOCKET": str(SOCKET)}, "torch's settings are the user's"


def test_a_whole_record_is_no_longer_than_what_is_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    name = {"process_group": ("12", "mesh_dp_shard_cp"), "profiling_name": "nccl:_reduce_scatter_base"}
    longest = entry(10**9, "completed", **name, input_sizes=[[10**9] * 4] * 8, output_sizes=[[10**9] * 4] * 8)
    size = int(variables(SOCKET, {}, "2.13.0", Path("/logs"))["TORCH_FR_BUFFER_SIZE"])
    assert len(json.dumps(longest)) * size < MAX_BYTES


def test_a_record_in_json_is_read_as_torch_writes_it() -> None:
    body = json.dumps({"version": "2.10", "entries": [entry(1, "completed"), entry(2, "started")]}).encode()
    assert read(entries(body)) == CollectiveRecord("all_reduce 2 of [4] in default_pg")
    assert entries(b"") == []
