import asyncio
import logging

import pytest
from prometheus_client import CollectorRegistry

from controller.api.api_wait import current_wait
from controller.clock import monotonic as now
from controller.errors import Conflict, Invalid, InvalidStatus, NamespaceTerminating, NotFound, Unavailable
from controller.queue.loop import ReconcileLoop, make_queue
from controller.queue.metrics import QueueMetrics, ReconcileMetrics
from controller.queue.workqueue import BACKOFF_CAP_SECONDS
from controller.reconciler import (
    Reconciler,
    ReconcileReporter,
    ReconcileTimeout,
    Request,
    Result,
    TerminalError,
)
from controller.slices import SLICE_SECONDS

JOB = Request("ns", "job")


class Scripted(Reconciler):
    """Does what it was given, one entry a call; then nothing."""

    def __init__(self, *script):
        self.script = list(script)
        self.calls = []

    async def reconcile(self, request):
        self.calls.append(now())
        action = self.script.pop(0) if self.script else None
        if isinstance(action, BaseException):
            raise action
        if callable(action):
            await action()
        return action if isinstance(action, Result) else Result()


class Reports(ReconcileReporter):
    """What is to be shown; showing fails, if it is told to."""

    def __init__(self, problem=None):
        self.problem = problem
        self.errors = []
        self.successes = 0

    async def failed(self, request, error):
        self.errors.append(error)
        if self.problem is not None:
            raise self.problem

    async def succeeded(self, request):
        self.successes += 1
        if self.problem is not None:
            raise self.problem


def play(reconciler, seconds=10.0, workers=1, timeout_seconds=120.0, requests=(JOB,), reporter=None):
    """Runs it for that long in virtual time, starting with `requests`; returns the metrics' reader."""
    registry, samples = CollectorRegistry(), {}

    async def scenario():
        queue = make_queue("job", QueueMetrics(registry))
        loop = ReconcileLoop(
            "job",
            queue,
            reconciler,
            workers=workers,
            metrics=ReconcileMetrics(registry),
            timeout_seconds=timeout_seconds,
            reporter=reporter,
        )
        running = asyncio.create_task(loop.run())
        for request in requests:
            queue.add(request)
        await asyncio.sleep(seconds)
        queue.shut_down()
        await running
        for family in registry.collect():
            samples.update({(each.name, *sorted(each.labels.items())): each.value for each in family.samples})

    asyncio.run(scenario())
    return lambda metric, **labels: samples.get((metric, *sorted({"controller": "job", **labels}.items())))


def results(read):
    kinds = ("error", "requeue_after", "requeue", "success")
    return {kind: n for kind in kinds if (n := read("controller_runtime_reconcile_total", result=kind))}


DOWN = Unavailable("down")


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        ([DOWN] * 3, [0, 0.005, 0.015, 0.035]),
        ([DOWN, DOWN, Result(1.0), DOWN], [0, 0.005, 0.015, 1.015, 1.02]),
        ([Result(requeue_after_seconds=3)], [0, 3]),
        ([Unavailable("busy", status=429, retry_after_seconds=7)], [0, 7]),
        ([Unavailable("busy", status=503, retry_after_seconds=3600)], [0, BACKOFF_CAP_SECONDS]),
        ([asyncio.CancelledError()], [0, 0.005]),
    ],
    ids=["growing waits", "anew after success", "as asked", "as told", "no absurd wish", "cancels itself"],
)
def test_a_look_comes_back_until_it_is_well(script, calls):
    reconciler = Scripted(*script)
    read = play(reconciler, seconds=4000.0)
    assert reconciler.calls == pytest.approx(calls, abs=1e-6)
    failures = sum(not isinstance(each, Result) for each in script)
    again = {"requeue_after": len(script) - failures, "error": failures, "success": 1}
    assert results(read) == {kind: count for kind, count in again.items() if count}
    assert read("workqueue_retries_total", name="job") == failures


def test_after_a_long_look_the_next_one_waits_for_as_long_again_but_no_longer_than_a_second():
    async def fail_after(seconds):
        await asyncio.sleep(seconds)
        raise Unavailable("x")

    reconciler = Scripted(lambda: fail_after(0.5), lambda: fail_after(3.0), lambda: fail_after(0.01))
    play(reconciler)
    assert reconciler.calls == pytest.approx([0.0, 1.0, 5.0, 5.01 + 0.02], abs=1e-6)


def test_what_a_look_waited_for_the_api_server_makes_it_no_long_one():
    async def wait_for_answers():
        async def request():
            with current_wait.get():
                await asyncio.sleep(0.5)

        await asyncio.gather(request(), request())
        raise Unavailable("x")

    reconciler = Scripted(wait_for_answers)
    play(reconciler)
    assert reconciler.calls == pytest.approx([0.0, 0.505], abs=1e-6)


def test_terminal_error_is_counted_and_not_tried_again():
    reconciler = Scripted(TerminalError("no way"))
    read = play(reconciler)
    assert len(reconciler.calls) == 1
    assert read("controller_runtime_terminal_reconcile_errors_total") == 1
    assert results(read) == {"error": 1}


@pytest.mark.parametrize("error", [KeyError("spec"), DOWN])
def test_an_error_is_logged_once_and_an_unforeseen_one_counted_and_with_its_traceback(caplog, error):
    with caplog.at_level(logging.WARNING):
        read = play(Scripted(error))
    (entry,) = caplog.records
    assert "controller=job object=ns/job" in entry.message and error.args[0] in entry.message
    assert read("controller_runtime_reconcile_panics_total") == bool(entry.exc_info) == (error is not DOWN)


def test_an_object_that_was_deleted_meanwhile_is_no_warning_unless_it_lasts(caplog):
    gone = [NotFound(404, "NotFound", "elasticjobs x not found")]
    for failures, warned in ((5, False), (12, True)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            play(Scripted(*gone * failures), seconds=60)
        assert bool(caplog.records) is warned


@pytest.mark.parametrize("mended_at", [330, 700, 3600])
def test_what_failed_for_long_is_done_within_a_minute_after_its_cause_is_mended(mended_at):
    class Refused(Reconciler):
        done_at = None

        async def reconcile(self, request):
            if now() < mended_at:
                raise Unavailable("failed calling webhook", status=500)
            self.done_at = self.done_at or now()
            return Result()

    reconciler = Refused()
    play(reconciler, seconds=2 * mended_at)
    assert reconciler.done_at - mended_at <= 60


def test_hanging_reconcile_is_given_up_and_tried_again():
    reconciler = Scripted(lambda: asyncio.sleep(1e6))
    read = play(reconciler, seconds=50, timeout_seconds=20)
    assert reconciler.calls == pytest.approx([0, 21.0])
    assert read("controller_runtime_reconcile_timeouts_total") == 1


def test_time_out_of_a_call_inside_is_an_ordinary_error():
    async def call():
        async with asyncio.timeout(1):
            await asyncio.sleep(5)

    reconciler = Scripted(call)
    read = play(reconciler)
    assert read("controller_runtime_reconcile_timeouts_total") == 0
    assert results(read) == {"error": 1, "success": 1}


class Busy(Reconciler):
    """Computes, and waits for nothing. Counts how often others had a turn before each look."""

    def __init__(self):
        self.turns = 0
        self.turns_before = []

    async def reconcile(self, request):
        self.turns_before.append(self.turns)
        asyncio.get_running_loop().call_soon(self._others)
        asyncio.get_running_loop()._played.skipped_seconds += 1.1 * SLICE_SECONDS  # it computes
        return Result()

    def _others(self):
        self.turns += 1


@pytest.mark.parametrize("workers", [1, 4])
def test_looks_that_wait_for_nothing_give_others_a_turn_between_any_two_slices(workers):
    busy = Busy()
    play(busy, workers=workers, requests=[Request("ns", f"job-{number}") for number in range(20)])
    assert len(busy.turns_before) == 20
    assert len(set(busy.turns_before)) == 20


def test_requests_are_worked_on_side_by_side_by_as_many_workers():
    slow = [lambda: asyncio.sleep(3)] * 4
    requests = [Request("ns", str(index)) for index in range(4)]
    reconciler = Scripted(*slow)
    play(reconciler, workers=2, requests=requests)
    assert reconciler.calls == pytest.approx([0, 0, 3, 3])


def test_stop_waits_for_what_is_in_work():
    finished = []

    async def work():
        await asyncio.sleep(20)
        finished.append(now())

    play(Scripted(work), seconds=5)
    assert finished == pytest.approx([20])


def test_what_is_in_a_namespace_that_goes_comes_back_ever_more_rarely_and_is_no_warning(caplog):
    caplog.set_level("INFO", logger="controller")
    refusal = NamespaceTerminating(403, "Forbidden", "it is being terminated")
    reconciler, reports = Scripted(*[refusal] * 1000), Reports()
    play(reconciler, 60.0, reporter=reports)
    assert len(reconciler.calls) < 20 and not reports.errors
    assert {record.levelname for record in caplog.records} == {"INFO"}


@pytest.mark.parametrize("error", [InvalidStatus(422, "Invalid", "too many"), TerminalError("too long")])
def test_status_that_the_server_finds_invalid_or_would_is_not_tried_again(error):
    reconciler, reports = Scripted(error), Reports()
    read = play(reconciler, reporter=reports)
    assert len(reconciler.calls) == 1 and len(reports.errors) == 1
    assert read("controller_runtime_terminal_reconcile_errors_total") == 1


def test_what_nobody_foresaw_is_reported_and_what_comes_and_goes_with_the_server_is_not():
    told = [KeyError("spec"), TerminalError("no way"), InvalidStatus(422, "Invalid", "")]
    untold = [
        Unavailable("down"),
        Conflict(409, "Conflict", ""),
        Invalid(422, "Invalid", "a Pod"),
        TimeoutError(),
        NamespaceTerminating(403, "Forbidden", ""),
    ]
    for error in told + untold:
        reports = Reports()
        play(Scripted(error), reporter=reports)
        assert reports.errors == ([error] if error in told else [])
    reports = Reports()
    play(Scripted(lambda: asyncio.sleep(1e6)), seconds=50, timeout_seconds=20, reporter=reports)
    assert [type(error) for error in reports.errors] == [ReconcileTimeout]
    assert reports.successes == 1


def test_a_report_that_fails_changes_nothing(caplog):
    reports = Reports(Conflict(409, "Conflict", "the job has changed"))
    reconciler = Scripted(KeyError("spec"), KeyError("spec"))
    with caplog.at_level(logging.INFO):
        read = play(reconciler, reporter=reports)
    assert reconciler.calls == pytest.approx([0, 0.005, 0.015], abs=1e-6)
    assert results(read) == {"error": 2, "success": 1}
    assert sum("could not be reported controller=job object=ns/job" in r.message for r in caplog.records) == 3
