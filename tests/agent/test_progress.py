from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from agent.monitor.progress import (
    ENV_RUNTIME_METRICS,
    FIRST_COUNT_SECONDS,
    ProgressFiles,
    RankProgress,
    Snapshot,
)
from agent.monitor.stepping import Figures, Start, StepReport
from agent.report import progress_monitor
from agent.report.progress_monitor import Progress, ProgressMonitor
from agent.report.report import Report
from crds.agent_report import AgentCheckpointTrouble, AgentState, RoundProgress, Series
from crds.checkpoint_files import CheckpointTrouble
from crds.progress_record import (
    ENV_PROGRESS_FILE,
    NUMBERS_FORMAT,
    PROGRESS_FORMAT,
    RECORD_BYTES,
)
from crds.wire import from_wire

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(ENV_RUNTIME_METRICS, raising=False)
    files = ProgressFiles()
    yield files
    files.remove()


def run_script(env: dict[str, str], code: str) -> None:
    subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, check=True, timeout=300)


def report_step(env: dict[str, str], step: int) -> None:
    run_script(env, f"import dlr; dlr.report({step})")


def save_checkpoint(env: dict[str, str], step: int) -> None:
    run_script(env, f"import dlr; dlr.checkpoint_saved({step})")


def newest_step(files: ProgressFiles) -> int | None:
    newest = files.read().newest
    return newest and newest.step


def test_newest_step_of_any_process_is_read(files: ProgressFiles) -> None:
    first, second = files.renew(2, Start(1))
    assert files.read() == Snapshot({})
    report_step(second, 7)
    report_step(first, 6)
    newest = files.read().newest
    assert newest.step == 6
    assert 0 <= time.monotonic() - newest.at < 300


def test_started_anew_nothing_is_told_yet(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    report_step(env, 7)
    files.renew(1, Start(1))
    assert files.read() == Snapshot({})


def test_processes_start_again_after_a_script_that_emptied_the_temporary_directory(
    files: ProgressFiles,
) -> None:
    shutil.rmtree(files.directory)
    (variables,) = files.renew(1, Start(2))
    assert Path(variables[ENV_PROGRESS_FILE]).stat().st_size == RECORD_BYTES
    assert files.directory.stat().st_mode & 0o777 == 0o700, "as mkdtemp has it"


def test_highest_checkpoint_of_any_process_is_read_with_the_newest_step(files: ProgressFiles) -> None:
    first, second = files.renew(2, Start(1))
    report_step(first, 25)
    save_checkpoint(second, 20)
    save_checkpoint(first, 10)  # its part took longer to store
    assert (newest_step(files), files.read().checkpoint_step) == (25, 20)


def test_script_that_tells_only_its_checkpoints_is_at_least_that_far(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    save_checkpoint(env, 20)
    assert (newest_step(files), files.read().checkpoint_step) == (20, 20)
    assert 0 <= time.monotonic() - files.read().newest.at < 300


def test_checkpoints_of_an_earlier_start_are_not_told(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    save_checkpoint(env, 20)
    (env,) = files.renew(1, Start(1))
    report_step(env, 21)
    assert (newest_step(files), files.read().checkpoint_step) == (21, None)


def test_each_process_is_read_by_itself_too(files: ProgressFiles) -> None:
    first, second, _third = files.renew(3, Start(1))
    report_step(first, 7)
    report_step(second, 5)
    save_checkpoint(second, 5)
    ranks = [files.read_rank(rank) for rank in range(3)]
    assert [rank.step for rank in ranks] == [7, 5, None]
    told = [rank.last_report_at for rank in ranks]
    assert told[0] < told[1] <= time.monotonic()
    assert ranks[2] == RankProgress()
    assert files.read_rank(9) == RankProgress()


def test_a_process_that_tells_only_its_checkpoints_is_at_the_last_of_them(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    save_checkpoint(env, 20)
    rank = files.read_rank(0)
    assert rank.step == 20
    assert 0 <= time.monotonic() - rank.last_report_at < 300


def test_a_process_is_busy_until_when_its_file_says(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    assert files.read_rank(0).busy_until is None
    with Path(env[ENV_PROGRESS_FILE]).open("r+b") as file:
        file.seek(40)
        file.write(struct.pack("d", 1234.5))
    assert files.read_rank(0) == RankProgress(busy_until=1234.5)


def test_the_shared_metrics_file_speaks_for_processes_that_tell_nothing_else(files: ProgressFiles) -> None:
    first, second = files.renew(2, Start(1))
    Path(first[ENV_RUNTIME_METRICS]).write_text(json.dumps({"step": 12, "timestamp": time.time()}))
    report_step(second, 11)
    assert files.read_rank(1).step == 11
    rank = files.read_rank(0)
    assert rank.step == 12
    assert 0 <= time.monotonic() - rank.last_report_at < 300


def test_script_with_an_older_dlr_is_read(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    run_script(
        env,
        "import mmap, os, struct, time\n"
        "with open(os.environ['DLR_PROGRESS_FILE'], 'r+b') as file: slot = mmap.mmap(file.fileno(), 16)\n"
        "struct.pack_into('qd', slot, 0, 7, time.monotonic())\n",
    )
    assert (newest_step(files), files.read().checkpoint_step) == (7, None)


def test_steps_never_fall_while_they_are_written(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    script = (
        "import dlr, itertools\n"
        "for step in itertools.count():\n    dlr.report(step)\n    dlr.checkpoint_saved(step)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], env=env, cwd=ROOT) as process:
        seen: list[Snapshot] = []
        while process.poll() is None and (len(seen) < 5_000 or seen[-1].checkpoint_step is None):
            look = files.read()
            if look.steps:
                seen.append(look)
        process.kill()
    assert len(seen) > 100
    steps = [look.newest.step for look in seen]
    assert steps == sorted(steps)
    saved = [*dropwhile(lambda step: step is None, (look.checkpoint_step for look in seen))]
    assert saved and None not in saved
    assert saved == sorted(step for step in saved if step is not None)


@pytest.mark.parametrize(
    "told",
    [
        {"step": 12, "timestamp": time.time() * 1000 + 60_000},
        {"step": 12, "timestamp": float("nan")},
        {"step": float("inf"), "timestamp": time.time() + 0.5},
        {"step": 1 << 70, "timestamp": time.time() + 0.5},
        {"step": [], "timestamp": time.time() + 0.5},
        [],
    ],
)
def test_whatever_a_script_writes_into_the_metrics_file_the_agent_lives(
    files: ProgressFiles, told: object
) -> None:
    (env,) = files.renew(1, Start(1))
    Path(env[ENV_RUNTIME_METRICS]).write_text(json.dumps(told))
    assert files.read().newest is None
    assert files.read_rank(0).step is None


def test_dlrovers_metrics_file_counts_too(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    metrics = Path(env[ENV_RUNTIME_METRICS])
    metrics.write_text(json.dumps({"step": 12, "timestamp": time.time()}))
    assert newest_step(files) == 12
    metrics.write_text('{"step": 13, "times')  # half written
    assert newest_step(files) is None


def test_two_agents_on_one_host_do_not_mix() -> None:
    one, other = ProgressFiles(), ProgressFiles()
    assert not {*one.renew(1, Start())[0].values()} & {*other.renew(1, Start())[0].values()}
    one.remove()
    other.remove()


def first_report(**known: Any) -> Report:
    return Report(AgentState.READY, datetime.now(UTC), 0, **known)


class FakeReporter:
    def __init__(self, progress: Progress) -> None:
        self.latest = first_report()
        self.figures = progress.figures
        self.told: list[tuple[int, int | None, bool]] = []
        self.checkpoints: list[tuple[int, int | None]] = []
        self.awaited: list[bool] = []

    def progress(self, *, within_seconds: float | None) -> None:
        progress = self.figures().progress
        self.told.append((progress.step, progress.checkpoint_step, within_seconds == 0.0))

    def checkpoint(self, *, is_awaited: bool = False) -> None:
        progress = self.figures().progress
        self.checkpoints.append((progress.step, progress.checkpoint_step))
        self.awaited.append(is_awaited)

    def hasten(self) -> None:
        pass


def monitored(files: ProgressFiles, **options: Any) -> tuple[Progress, FakeReporter, ProgressMonitor]:
    progress = Progress(files, first_report())
    reporter = FakeReporter(progress)
    return progress, reporter, ProgressMonitor(progress, reporter, **options)  # type: ignore[arg-type]


def test_only_changes_are_told_and_the_first_of_a_round_at_once(files: ProgressFiles) -> None:
    progress = Progress(files, first_report())
    reporter = FakeReporter(progress)
    first_steps: list[int] = []
    monitor = ProgressMonitor(
        progress,
        reporter,  # type: ignore[arg-type]
        at_first_steps=lambda: first_steps.append(len(reporter.told)),
    )
    (env,) = files.renew(1, Start(1))
    monitor.look()
    assert not first_steps
    report_step(env, 1)
    monitor.look()
    monitor.look()
    report_step(env, 2)
    monitor.look()
    (env,) = files.renew(1, Start(2))
    monitor.look()
    report_step(env, 2)
    monitor.look()
    assert reporter.told == [(1, None, True), (2, None, False), (2, None, True)]
    assert first_steps == [0, 2]


def test_a_defect_ends_no_reports_of_progress(
    files: ProgressFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_monitor, "LOOK_SECONDS", 0.02)
    _progress, reporter, monitor = monitored(files)
    defects = iter([KeyError("step"), OSError("no descriptors are left")])
    look = monitor.look

    def look_or_fail() -> None:
        if (defect := next(defects, None)) is not None:
            raise defect
        look()

    monkeypatch.setattr(monitor, "look", look_or_fail)
    (env,) = files.renew(1, Start(1))
    report_step(env, 7)
    monitor.start()
    deadline = time.monotonic() + 300
    while not reporter.told:
        assert time.monotonic() < deadline and monitor.is_alive()
        time.sleep(0.01)
    monitor.stop()
    assert reporter.told[0][0] == 7
    assert caplog.text.count("the progress of training is not read; trying again") == 1


def test_a_checkpoint_is_told_and_never_falls_within_a_round(files: ProgressFiles) -> None:
    _progress, reporter, monitor = monitored(files)
    (env,) = files.renew(1, Start(1))
    report_step(env, 9)
    monitor.look()
    save_checkpoint(env, 9)
    monitor.look()
    monitor.look()
    save_checkpoint(env, 4)  # the script went back, and is not as far again yet
    monitor.look()
    report_step(env, 5)
    monitor.look()
    (env,) = files.renew(1, Start(1))
    report_step(env, 5)
    monitor.look()
    save_checkpoint(env, 5)
    monitor.look()
    assert reporter.told == [(9, None, True), (5, 9, False), (5, None, True)]
    assert reporter.checkpoints == [(9, 9), (5, 5)]


def test_a_checkpoint_that_a_growth_waits_for_is_told_as_one(files: ProgressFiles) -> None:
    awaited = iter([False, True])
    _, reporter, monitor = monitored(files, checkpoint_is_awaited=lambda: next(awaited))
    (env,) = files.renew(1, Start(1))
    report_step(env, 1)
    monitor.look()
    for step in (2, 3):
        save_checkpoint(env, step)
        monitor.look()
    assert reporter.awaited == [False, True]


def test_a_checkpoint_that_is_awaited_is_told_before_the_next_look(
    files: ProgressFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was saved before somebody waits, with the news of that; later ones as they are saved."""
    monkeypatch.setattr(progress_monitor, "LOOK_SECONDS", 3_600.0)
    told: Queue[tuple[str, int | None]] = Queue()
    is_awaited = threading.Event()

    class Teller(FakeReporter):
        def progress(self, *, within_seconds: float | None) -> None:
            told.put(("step", self.figures().progress.checkpoint_step))

        def checkpoint(self, *, is_awaited: bool = False) -> None:
            told.put(("awaited" if is_awaited else "saved", self.figures().progress.checkpoint_step))

        def hasten(self) -> None:
            told.put(("hastened", self.figures().progress.checkpoint_step))

    asked: Queue[float] = Queue()

    def awaited() -> bool:
        asked.put(time.monotonic())
        return is_awaited.is_set()

    progress = Progress(files, first_report())
    monitor = ProgressMonitor(progress, Teller(progress), checkpoint_is_awaited=awaited)  # type: ignore[arg-type]
    (env,) = files.renew(1, Start(1))
    report_step(env, 1)
    monitor.start()
    try:
        assert told.get(timeout=300) == ("step", None)
        save_checkpoint(env, 1)
        assert told.empty()
        is_awaited.set()
        monitor.note_news()
        assert told.get(timeout=300) == ("hastened", 1), "what was looked at before, and not yet reported"
        assert told.get(timeout=300) == ("awaited", 1)
        save_checkpoint(env, 2)
        assert told.get(timeout=300) == ("awaited", 2)
        save_checkpoint(env, 1)  # the script went back, which is no reason to look all the time
        while not asked.empty():
            asked.get()
        first, *_, last = [asked.get(timeout=300) for _ in range(4)]
        assert last - first >= progress_monitor.AWAITED_LOOK_SECONDS
    finally:
        monitor.stop()
        monitor.join(timeout=300)
    assert not monitor.is_alive() and told.empty()


def stretch(round_progress: RoundProgress) -> tuple[int, int, int]:
    return round_progress.round, round_progress.first_step, round_progress.last_step


def tell(
    env: dict[str, str], step: int, at: float, first: StepReport | None = None, samples: int = 0
) -> None:
    """As the SDK does, at a time of our choice."""
    told = first or StepReport(0.0, 0)
    words = (step, at, 0, 0.0, 0, 0.0, told.step, told.at, 0, 0.0, 0, 0.0, 0, 0, 0, 0, 0, samples)
    Path(env[ENV_PROGRESS_FILE]).write_bytes(
        struct.pack(PROGRESS_FORMAT, *words) + bytes(struct.calcsize(NUMBERS_FORMAT))
    )


def count(env: dict[str, str], step: int, at: float, first: StepReport, unknown: int = 0) -> None:
    """As the hook of a process does whose script tells nothing."""
    words = (0, 0.0, 0, 0.0, 0, 0.0, 0, 0.0, step, at, first.step, first.at, 0, 0, 0, 0, unknown, 0)
    Path(env[ENV_PROGRESS_FILE]).write_bytes(
        struct.pack(PROGRESS_FORMAT, *words) + bytes(struct.calcsize(NUMBERS_FORMAT))
    )


def test_what_was_trained_is_told_by_round(files: ProgressFiles) -> None:
    progress, _reporter, monitor = monitored(files)
    (env,) = files.renew(1, Start(1))
    now = time.monotonic()
    tell(env, 12, now - 8, first=StepReport(now - 10, 11))
    monitor.look()
    tell(env, 15, now - 2, first=StepReport(now - 10, 11), samples=64)
    figures = progress.figures()
    assert figures.rounds[0].samples_per_step == 64
    assert [stretch(r) for r in figures.rounds] == [(1, 11, 15)]
    assert figures.rounds[0].stepping_seconds == pytest.approx(8)
    assert figures.progress.seconds_per_step == pytest.approx(2)
    (env,) = files.renew(1, Start(2))
    assert progress.figures() == Figures(rounds=figures.rounds)
    tell(env, 13, now)  # an older `dlr` does not say which was the first
    assert [stretch(r) for r in progress.figures().rounds] == [(1, 11, 15), (2, 13, 13)]


def test_the_last_steps_of_processes_that_have_ended_are_told_with_their_failure(
    files: ProgressFiles,
) -> None:
    _progress, reporter, monitor = monitored(files)
    (env,) = files.renew(1, Start(1))
    report_step(env, 3)
    monitor.look()
    report_step(env, 4)  # nobody has looked since
    assert [stretch(r) for r in reporter.figures().rounds] == [(1, 3, 4)]
    files.remove()
    assert [stretch(r) for r in reporter.figures().rounds] == [(1, 3, 4)]


def test_first_step_of_any_process_whose_loss_is_no_number_is_told_with_its_round(
    files: ProgressFiles,
) -> None:
    script = "from dlr import report; report({0}, 1.0); report({0} + 1, float('nan'))"
    for env, step in zip(files.renew(2, Start(1)), (7, 4), strict=True):
        run_script(env, script.format(step))
    progress = Progress(files, first_report())
    (told,) = progress.figures().rounds
    assert (told.last_step, told.non_finite_step) == (8, 5)
    assert from_wire(RoundProgress, told.to_wire()).non_finite_step == 5
    files.renew(2, Start(1))
    assert progress.figures().rounds == (told,), "it is told of that round for good"


def test_a_loss_that_is_no_number_is_told_at_once_though_another_step_is_not_due(
    files: ProgressFiles,
) -> None:
    _progress, reporter, monitor = monitored(files)
    (env,) = files.renew(1, Start(1))
    run_script(env, "import dlr; dlr.report(4, loss=2.5)")
    monitor.look()
    reporter.told.clear()
    run_script(env, "import dlr; dlr.report(5, loss=float('nan'), lr=0.1)")
    monitor.look()
    assert reporter.told[0] == (5, None, True)
    reporter.told.clear()
    monitor.look()
    assert reporter.told == [], "once"


def test_numbers_are_read_by_name_and_those_beyond_the_room_are_left_out(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    run_script(
        env,
        """
import dlr
dlr.report(1, loss=float("inf"), lr=float("nan"))
dlr.report(2, loss=2.5, lr=0.1, Größe=3, **{"x" * 25: 1.0})
dlr.report(3, loss=float("nan"), lr=0.2, **{f"n{i}": i for i in range(9)})
""",
    )
    snapshot = files.read()
    assert snapshot.numbers == {"loss": 2.5, "lr": 0.2, "Größe": 3.0, **{f"n{i}": float(i) for i in range(5)}}
    assert snapshot.non_finite_step == 1
    files.renew(1, Start(1))
    assert files.read().numbers == {}


def test_the_jobs_past_is_in_the_reports_of_rank_0_and_an_earlier_agents_is_taken_over(
    files: ProgressFiles,
) -> None:
    progress, _, monitor = monitored(files)
    for leads in (True, False):
        (env,) = files.renew(1, Start(1, world_size=4, leads=leads))
        for step in range(1, 8):
            run_script(env, f"import dlr; dlr.report({step}, loss={step})")
            monitor.look()
        assert (progress.figures().series is not None) == leads
    told = from_wire(Series, progress._chronicle._history.series.to_wire())
    files.renew(1, Start(1, world_size=4))
    series = Progress(files, first_report(series=told)).figures().series
    assert series is not None and [point.numbers for point in series.points] == [{"loss": 4.0}] * 2


def test_trouble_with_checkpoints_is_told_until_it_works_after_a_start_too(files: ProgressFiles) -> None:
    first, second = files.renew(2, Start(1))

    def tell_trouble(env: dict[str, str], **told: str) -> None:
        Path(f"{env['DLR_PROGRESS_FILE']}.trouble").write_text(json.dumps(told))

    _progress, reporter, monitor = monitored(files)
    assert files.read().trouble is None
    report_step(first, 1)
    monitor.look()
    tell_trouble(second, SaveSkipped="slow", StorageFails="full" * 1_000)
    found = files.read().trouble
    assert found == AgentCheckpointTrouble(CheckpointTrouble.STORAGE, ("full" * 1_000)[:512])
    monitor.look()
    monitor.look()
    assert reporter.checkpoints == [(1, None)], "once"
    assert reporter.figures().trouble == found
    first, second = files.renew(2, Start(1))
    assert files.read().trouble == found, "the new processes have saved nothing yet"
    tell_trouble(second, StorageFails="", SaveSkipped="")
    assert files.read().trouble is None
    for text in ("half of", "[" * 100_000):
        Path(f"{first['DLR_PROGRESS_FILE']}.trouble").write_text(text)
        assert files.read().trouble is None


def test_trouble_that_an_earlier_agent_of_the_slot_told_is_told_until_a_save_works() -> None:
    told = AgentCheckpointTrouble(CheckpointTrouble.STORAGE, "full")
    files = ProgressFiles(trouble=told)
    try:
        progress = Progress(files, first_report(trouble=told))
        assert progress.figures().trouble == told, "before the first start too"
        (env,) = files.renew(1, Start(1))
        report_step(env, 5)
        assert progress.figures().trouble == told, "nothing was saved yet"
        Path(f"{env['DLR_PROGRESS_FILE']}.trouble").write_text(json.dumps({"StorageFails": ""}))
        assert progress.figures().trouble is None
    finally:
        files.remove()


def test_rounds_that_an_earlier_agent_of_the_pod_told_stay(files: ProgressFiles) -> None:
    earlier = tuple(RoundProgress(number, 1, 2, 1.0) for number in range(1, 9))
    progress = Progress(files, first_report(rounds=earlier))
    assert progress.figures().rounds == earlier
    (env,) = files.renew(1, Start(9))
    report_step(env, 3)
    assert [r.round for r in progress.figures().rounds] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_what_was_counted_says_how_far_a_script_is_that_tells_nothing(files: ProgressFiles) -> None:
    progress = Progress(files, first_report())
    (env,) = files.renew(1, Start(1))
    now = time.monotonic()
    count(env, 6, now, first=StepReport(now - 10, 1))
    figures = progress.figures()
    assert figures.rounds == (RoundProgress(1, 1, 6, pytest.approx(10), counted=True),)
    assert figures.progress and figures.progress.seconds_per_step == pytest.approx(2)
    rank = files.read_rank(0)
    assert (rank.step, rank.last_report_at, rank.reports_steps) == (6, pytest.approx(now), True)


def test_a_first_count_waits_for_what_the_script_may_tell_in_a_moment(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start(1))
    now = time.monotonic()
    just_now = now + 3_600  # however late it is read
    count(env, 1, just_now, first=StepReport(just_now, 1))
    assert files.read() == Snapshot({})
    assert files.read_rank(0) == RankProgress()
    long_ago = now - FIRST_COUNT_SECONDS
    count(env, 1, long_ago, first=StepReport(long_ago, 1))
    assert files.read().newest == StepReport(pytest.approx(long_ago), 1)


def test_where_a_count_began_is_known_of_a_new_job_and_where_the_optimizer_says_it(
    files: ProgressFiles,
) -> None:
    now = time.monotonic()
    for of_new_job, unknown, expected in ((True, 1, None), (False, 1, True), (False, 0, None)):
        (env,) = files.renew(1, Start(1, of_new_job=of_new_job))
        count(env, 6, now, first=StepReport(now - 10, 1), unknown=unknown)
        progress = Progress(files, first_report())
        assert [each.start_unknown for each in progress.figures().rounds] == [expected]


def test_once_a_script_tells_its_steps_nothing_counts_that_was_counted(files: ProgressFiles) -> None:
    progress, _reporter, _monitor = monitored(files)
    first, second = files.renew(2, Start(1))
    now = time.monotonic()
    count(second, 6, now - 5, first=StepReport(now - 10, 1))
    assert [r.counted for r in progress.figures().rounds] == [True]
    tell(first, 1_006, now, first=StepReport(now - 1, 1_005))
    figures = progress.figures()
    assert figures.progress and figures.progress.step == 1_006
    assert figures.rounds == (RoundProgress(1, 1_005, 1_006, pytest.approx(1)),)
    assert files.read_rank(1) == RankProgress(), "its number compares with no other"

    first, second = files.renew(2, Start(1))
    count(second, 6, now, first=StepReport(now - 10, 1))
    assert files.read() == Snapshot({})


def test_a_slot_whose_script_told_its_steps_before_waits_for_them(files: ProgressFiles) -> None:
    known = ProgressFiles(told=True)
    (env,) = known.renew(1, Start())
    now = time.monotonic()
    count(env, 6, now, first=StepReport(now - 10, 1))
    assert known.read() == Snapshot({})
    known.remove()
