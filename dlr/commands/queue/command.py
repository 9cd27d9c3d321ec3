"""`dlr-queue.pl`: runs the jobs of one call of queue.pl as a `dlr map`, and stays until they have ended."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from crds.intervals import LIMIT, Intervals, count
from dlr.commands.errors import CommandError
from dlr.commands.map.command import read_template, worker_range
from dlr.commands.map.follow import outcome_of, why_failed
from dlr.commands.map.manifest import Workers
from dlr.commands.map.submission import new_name, submit
from dlr.commands.queue.request import (
    NAME,
    Request,
    RequestError,
    parse,
    script,
    script_path,
    status_in,
    within,
)
from dlr.job import report
from dlr.job.lookup import get_job
from dlr.kube.api import ELASTICJOBS, Api
from dlr.kube.connection import connect
from dlr.kube.errors import ApiError, UsageError
from dlr.kube.following import until_finished
from dlr.tasks.lines import Lines
from dlr.tasks.task import Task

ENVIRONMENT = "DLR_QUEUE"
LOG_WAITS_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""A shared file system may show a log late."""


class Signalled(BaseException):
    """The caller wants an end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def main() -> NoReturn:
    """The program."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _raise)
    try:
        code = run(sys.argv[1:], os.environ, Path.cwd())
    except (ApiError, CommandError, UsageError, OSError) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        code = 1
    except RequestError as error:
        message = str(error)
        print(message if message.startswith("Usage") else f"{NAME}: {message}", file=sys.stderr)
        code = 1
    except Signalled as error:
        print(f"{NAME}: {signal.Signals(error.signum).name}: the jobs are deleted", file=sys.stderr)
        code = 128 + error.signum
    sys.exit(code)


def run(words: Sequence[str], environ: Mapping[str, str], folder: Path) -> int:
    """Carry out one call, made in this folder, and return its exit code.

    Raises:
        RequestError, CommandError, OSError: it cannot be carried out.
        Signalled: it was to end.
    """
    request, options = parse(words), _options(environ)
    if not options.image and not options.pod:
        raise CommandError(
            f'Say what the jobs run in: export {ENVIRONMENT}="--image kaldi:latest --pod pod.yaml", with a '
            "Pod template that mounts this file system."
        )
    path = folder / script_path(request)
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / request.log).parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(request, str(folder), environ))
    least, most = worker_range(options.workers)
    template = read_template(options.pod)
    allowed = Workers(
        least, most, options.slots, options.idle_seconds, image=options.image, template=template
    )
    workers = within(request, allowed)
    lines = Lines("".join(f"{number}\n" for number in request.numbers).encode())
    for number in request.numbers:  # what is there after this is of this call
        (folder / request.log_of(number)).unlink(missing_ok=True)
    task = Task(
        f"/bin/bash {shlex.quote(str(path))} {{}}", len(lines), lines.digest, workers.slots, 0, LIMIT - 1
    )
    api = Api(connect(options.kubeconfig, options.context, options.namespace))
    name = new_name()
    made = submit(api, name, task, lines, workers)
    try:
        for seen in until_finished(lambda: get_job(api, name), report.is_finished):
            job = seen
    except BaseException:
        with suppress(ApiError):
            api.delete(ELASTICJOBS, name)
        raise
    outcome = outcome_of(job, len(lines))
    if report.phase(job) != "Succeeded" and not outcome.failed:
        raise CommandError(f"the job {made.name!r} failed: {why_failed(job)}")
    _require_logs(request, folder)
    api.delete(ELASTICJOBS, name)
    return _conclude(request, folder, outcome.left)


def _conclude(request: Request, folder: Path, failed: Intervals) -> int:
    if not failed:
        return 0
    all_ = len(request.numbers)
    if all_ == 1:
        log = request.log_of(request.first)
        status = status_in((folder / log).read_text(errors="replace"))
        print(f"{NAME}: job failed with status {status}, log is in {log}", file=sys.stderr)
        if "JOB" in request.log and not request.job_name:
            print(f"{NAME}: probably you forgot to put JOB=1:$nj in your script.", file=sys.stderr)
    else:
        print(f"{NAME}: {count(failed)} / {all_} failed, log is in {request.log_of('*')}", file=sys.stderr)
    return 1


def _require_logs(request: Request, folder: Path) -> None:
    """A recipe reads them next.

    Raises:
        CommandError: one is not there.
    """
    missing = [folder / request.log_of(number) for number in request.numbers]
    for seconds in (0.0, *LOG_WAITS_SECONDS):
        time.sleep(seconds)
        missing = [path for path in missing if not path.exists()]
        if not missing:
            return
    raise CommandError(
        f"Log-file {missing[0]} does not exist: do the Pods see {folder}? A Pod template with a volume that "
        f"mounts it there goes into {ENVIRONMENT}, as --pod FILE."
    )


def _options(environ: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=ENVIRONMENT, add_help=False, exit_on_error=False, allow_abbrev=False
    )
    for name in ("--pod", "--namespace", "--kubeconfig", "--context"):
        parser.add_argument(name, *(["-n"] if name == "--namespace" else []))
    parser.add_argument("--image", default="")
    parser.add_argument("--workers", default="1:10")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--idle-seconds", type=int, default=60)
    try:
        found, unknown = parser.parse_known_args(shlex.split(environ.get(ENVIRONMENT, "")))
    except (argparse.ArgumentError, ValueError) as error:
        raise CommandError(f"{ENVIRONMENT} makes no sense: {error}.") from error
    if unknown or found.slots < 1 or found.idle_seconds < 0:
        raise CommandError(f"{ENVIRONMENT} makes no sense: {' '.join(unknown) or 'a number is too small'}.")
    return found


def _raise(signum: int, _frame: FrameType | None) -> NoReturn:
    raise Signalled(signum)
