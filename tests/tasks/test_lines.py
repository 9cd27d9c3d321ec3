"""Lines as bytes, packed for ConfigMaps; and the shell's text for each."""

from __future__ import annotations

import base64
import os
import random
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlr.commands.map.command import times, worker_range
from dlr.commands.map.manifest import MapWorkers, config_map_names, objects, task_and_lines
from dlr.kube.errors import UsageError
from dlr.tasks import lines as packing
from dlr.tasks.lines import Lines, LinesError, check, packed, unpacked
from dlr.tasks.task import LineTask, command_for, program_of

A_LINE = st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"").replace(b"\0", b""))


@given(st.lists(A_LINE, max_size=30), st.booleans())
def test_no_line_is_lost_with_a_newline_at_the_end_or_without(expected: list[bytes], ends: bool) -> None:
    text = b"\n".join(expected) + b"\n" * (ends and bool(expected))
    found = Lines(text)
    wanted = expected if ends or not expected or expected[-1] else expected[:-1]
    assert list(found) == wanted
    assert list(unpacked(packed(found))) == wanted and unpacked(packed(found)).digest == found.digest


def test_lines_travel_in_several_config_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 1_000)
    text = b"".join(b"%d\n" % random.Random(each).getrandbits(64) for each in range(500))
    lines = Lines(text)
    task = LineTask("echo {}", len(lines), lines.digest, 4, 2, 0)
    *made, job = objects("map-x", task, lines, MapWorkers(2, 9, 4, 60, "image"))
    assert len(made) > 3 and all(
        len(base64.b64decode(v)) <= 1_000 for c in made for v in c["binaryData"].values()
    )
    assert config_map_names(job) == [each["metadata"]["name"] for each in made]
    told, found = task_and_lines(made)
    assert told == task and found is not None and found.text == text
    worker = job["spec"]["replicaSpecs"]["worker"]
    assert (worker["replicas"], worker["minReplicas"], worker["maxReplicas"]) == (9, 2, 9)
    assert job["spec"]["elasticPolicy"]["shardScaling"] == {"slotsPerWorker": 4, "idleSeconds": 60}


def test_too_many_lines_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 10)
    with pytest.raises(LinesError, match="put the file where all Pods see it, and name it with --lines-path"):
        packed(Lines(os.urandom(1_000).hex().encode()))


@pytest.mark.parametrize(
    ("text", "said"),
    [(b"a\nb\0c\n", "line 2 has a NUL byte"), (b"a\n\n" + b"x" * 70_000, "line 3 has 70000 bytes")],
)
def test_what_no_command_can_take_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(LinesError, match=said):
        check(Lines(text))


@pytest.mark.real
@given(A_LINE)
def test_whatever_a_line_says_it_is_one_argument(line: bytes) -> None:
    words = ["/bin/sh", "-c", command_for("printf '%s|' {} {#} a{}b", line, 7)]
    assert subprocess.run(words, capture_output=True, check=True).stdout == line + b"|7|a" + line + b"b|"


@pytest.mark.parametrize(
    ("template", "program"),
    [("feats.sh {}", "feats.sh"), ("./a/b.sh", "./a/b.sh"), ("A=1 b {}", None), ("(a; b)", None), ("{} x", None),
     ('"my tool" {}', None), ("a; b", None), ("python3 -m x {}", "python3")],
)  # fmt: skip
def test_the_program_is_known_where_no_shell_has_to_say(template: str, program: str | None) -> None:
    assert program_of(template) == program


@pytest.mark.parametrize(
    ("amount", "slots", "found"),
    [("500m", 8, "4"), ("500m", 3, "1500m"), ("2Gi", 3, "6Gi"), ("1.5", 4, "6"), ("0.25G", 3, "750M")],
)
def test_a_worker_has_so_many_times_what_a_slot_has(amount: str, slots: int, found: str) -> None:
    assert times(amount, slots) == found


@pytest.mark.parametrize("text", ["", "2ki", "2GB", "-1", "٣"])
def test_what_kubernetes_would_not_take_is_no_amount(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a quantity such as|is less than nothing"):
        times(text, 1)


@pytest.mark.parametrize("text", ["0", "3:2", "a", "1:2:3", "1:100000"])
def test_workers_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be a number or MIN:MAX"):
        worker_range(text)
