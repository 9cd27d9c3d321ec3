"""What training processes tell their agent of checkpoints reaches it, and is no more than they said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.slots.process_files import ENV_CHECKPOINT_FILE, MemoryResume, Notice, ProcessFile, ProcessFiles
from crds.agent_report import Resumed
from crds.checkpoint_files import Tier

PATHS = st.dictionaries(st.integers(0, 9), st.text(max_size=9), max_size=3)
RESUMES = st.builds(
    MemoryResume,
    *(st.integers(), st.integers(), st.integers()),
    st.none() | st.text(max_size=9),
    PATHS,
    st.booleans(),
    PATHS,
    st.binary(max_size=32),
)
FILES = st.builds(
    ProcessFile,
    round=st.integers(),
    slots=st.lists(st.text(max_size=9), max_size=3).map(tuple),
    resume=st.none() | RESUMES,
    slots_of_pod=st.none() | st.integers(),
    failures_per_hour=st.none() | st.floats(0, 99),
    lost_step=st.none() | st.integers(),
    notice_file=st.text(max_size=9),
    copy_seconds_file=st.text(max_size=9),
)


@given(FILES)
def test_a_process_reads_what_its_agent_has_written(
    tmp_path_factory: pytest.TempPathFactory, file: ProcessFile
) -> None:
    path = tmp_path_factory.getbasetemp() / "checkpoint.0"
    path.write_text(file.encode(), encoding="utf-8")
    assert ProcessFile.read(str(path)) == file


def start(folder: Path, processes: int) -> tuple[ProcessFiles, list[Notice]]:
    files = ProcessFiles(has_replicas=False)
    environments = files.write(folder, [ProcessFile(round=2)] * processes)
    return files, [Notice(ProcessFile.read(each[ENV_CHECKPOINT_FILE])) for each in environments]


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"round": 2, "loaded": "x", "tier": "memory", "every": 0}', "[" * 100_000),
        '{"round": 2, "loaded": Infinity, "tier": "memory"}',
    ],
    ids=lambda text: text[:40],
)
def test_what_no_process_has_told_is_not_known(tmp_path: Path, text: str) -> None:
    files, _ = start(tmp_path, 2)
    (tmp_path / "notice.1").write_text(text)
    assert files.resumed(2) is None and files.every(2) is None


def test_a_round_has_resumed_when_all_of_its_processes_have_loaded(tmp_path: Path) -> None:
    files, (one, other) = start(tmp_path, 2)
    assert files.resumed(2) is None
    one.tell_loaded(120, Tier.STORAGE)
    assert files.resumed(2) is None, "the other may still fail"
    other.tell_loaded(120, Tier.STORAGE)
    assert files.resumed(2) == Resumed(2, Tier.STORAGE, 120)
    assert files.resumed(3) is None, "those of the next round have told nothing yet"


def test_the_interval_is_the_newest_that_was_told_in_this_round(tmp_path: Path) -> None:
    files, (notice,) = start(tmp_path, 1)
    assert files.every(2) is None
    notice.tell_every(8)
    notice.tell_every(16)
    assert files.every(2) == 16 and files.every(3) is None


def test_outside_of_dlr_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Notice(ProcessFile()).tell_loaded(1, Tier.STORAGE)
    assert not list(tmp_path.iterdir())
