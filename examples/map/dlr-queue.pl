#!/usr/bin/env python3
"""`dlr-queue.pl`: Kaldi's utils/parallel/queue.pl on `dlr map`, for its scripts as they are (docs/shards.md).

The command line, the quoting, the log's first and last lines, and what counts as a failure are queue.pl's,
with the last line of run.pl's log beside: recipes read both.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

NAME = "dlr-queue.pl"
ENVIRONMENT = "DLR_QUEUE"
LOG_WAITS_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""A shared file system may show a log late."""
USAGE = f"""\
Usage: {NAME} [options] [JOB=1:n] log-file command-line arguments...
e.g.: {NAME} foo.log echo baz
  (which will echo "baz", with stdout and stderr directed to foo.log)
or: {NAME} JOB=1:10 foo.JOB.log echo JOB
  (which runs ten jobs; another word than JOB will do)
Options, as of Kaldi's queue.pl:
  --mem <memory>             of a job, such as 2G or 500M
  --num-threads <n>          CPUs of a job (default: 1)
  --max-jobs-run <n>         at a time
  --gpu <n>                  GPUs of a job (default: 0)
Options of qsub are accepted, and have no say. What the jobs run in is in the environment: \
DLR_QUEUE="--image kaldi:latest --pod pod.yaml"
"""

_RANGE = re.compile(r"([A-Za-z_]\w*)=(\d+)(?::(\d+))?", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_NO_VALUE = ("-V",)
_OF_THIS_MACHINE = frozenset({"HOSTNAME", "HOME", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "USER", "LOGNAME", "_"})
_OF_THE_POD = ("DLR_", "KUBERNETES_", "BASH_FUNC_")
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class RequestError(Exception):
    """A command line that queue.pl would refuse; the message is its sentence."""


@dataclass(frozen=True)
class Request:
    log: str
    """The log file, with the job's name in it if there are several."""
    arguments: tuple[str, ...]
    """The command's words."""
    job_name: str = ""
    """What stands for the number; empty if there is one job, without a number."""
    first: int = 1
    last: int = 1
    memory: str = ""
    """The job's memory, as a Kubernetes quantity."""
    threads: int = 1
    max_jobs: int = 0
    """At a time; 0: no limit."""
    gpus: int = 0
    with_environment: bool = False

    @property
    def numbers(self) -> range:
        return range(self.first, self.last + 1)

    def log_of(self, number: int | str) -> str:
        return self.log.replace(self.job_name, str(number)) if self.job_name else self.log

    @property
    def command(self) -> str:
        """The shell's text. A word with a space in it is quoted; others are the shell's to interpret."""
        return " ".join(map(_quoted, self.arguments)) + " "


def parse(words: Sequence[str]) -> Request:
    """Read the arguments of a call; raise RequestError where they make no sense."""
    if len(words) < 2:
        raise RequestError(USAGE)
    left, found = list(words), Request("", ())
    for _ in range(2):  # JOB=1:n may stand between the options
        left, found = _with_options(left, found)
        left, found = _job_range(left, found)
    if len(left) < 2:
        raise RequestError(USAGE)
    found = replace(found, log=left[0], arguments=tuple(left[1:]))
    if found.last > found.first and found.job_name not in found.log:
        raise RequestError(
            f"you are trying to run a parallel job but you are putting the output into just one log file "
            f"({found.log})"
        )
    return found


def script_path(request: Request) -> PurePosixPath:
    """Return queue.pl's place of the script: `q` beside the logs, or beside a folder that is called log."""
    log = PurePosixPath(request.log)
    folder = log.parent.parent if log.parent.name in ("log", "LOG") else log.parent
    name = re.sub(rf"\.?{re.escape(request.job_name)}", "", log.name) if request.job_name else log.name
    stem = re.sub(r"\.[a-zA-Z]{1,5}$", "", name)
    return folder / "q" / f"{stem}.sh"


def script(request: Request, folder: str, environ: Mapping[str, str]) -> str:
    """What runs for a job, with its number as the only argument."""
    job = request.job_name
    number = f"//{job}/$DLR_JOB" if job else ""
    return f"""\
#!/bin/bash
DLR_JOB=$1
DLR_COMMAND={shlex.quote(request.command)}
DLR_COMMAND=${{DLR_COMMAND{number}}}
DLR_LOG={shlex.quote(request.log)}
DLR_LOG=${{DLR_LOG{number}}}
cd {shlex.quote(folder)} || exit 1
{_exports(request, environ)}\
if [ -f ./path.sh ]; then . ./path.sh; fi
mkdir -p "$(dirname "$DLR_LOG")"
( echo '#' Running on `hostname`
  echo '#' Started at `date`
  echo "# $DLR_COMMAND"
) >"$DLR_LOG" || exit 1
DLR_BEGAN=`date +"%s"`
( eval "$DLR_COMMAND" ) 2>>"$DLR_LOG" >>"$DLR_LOG"
DLR_STATUS=$?
DLR_TOOK=$((`date +"%s"`-DLR_BEGAN))
( echo '#' Accounting: time=$DLR_TOOK threads={request.threads}
  echo '#' Ended "(code $DLR_STATUS)" at `date`, elapsed time $DLR_TOOK seconds
  echo '#' Finished at `date` with status $DLR_STATUS
) >>"$DLR_LOG"
[ $DLR_STATUS -eq 0 ]
"""


def status_in(log: str) -> str:
    """What a job's command came to, as `script` has it written into the log; `unknown` if it is not there."""
    found = re.findall(r"^# Finished at .* with status (\d+)$", log, re.MULTILINE)
    return found[-1] if found else "unknown"


def _with_options(words: list[str], found: Request) -> tuple[list[str], Request]:
    while len(words) >= 2 and words[0].startswith("-"):
        switch, words = words[0], words[1:]
        if switch in _NO_VALUE:
            found = replace(found, with_environment=True)
        elif switch == "-pe":  # such as `-pe smp 5`
            found, words = replace(found, threads=_number(switch, words[1:2])), words[2:]
        else:
            found, words = _with_option(found, switch, words[0]), words[1:]
    return words, found


def _with_option(found: Request, switch: str, value: str) -> Request:
    match switch:
        case "--mem":
            return replace(found, memory=_memory(value))
        case "--num-threads":
            return replace(found, threads=max(_number(switch, [value]), 1))
        case "--max-jobs-run" | "-tc":
            most = _number(switch, [value])
            return replace(found, max_jobs=min(most, found.max_jobs or most))
        case "--gpu":
            return replace(found, gpus=_number(switch, [value]))
    return found  # of qsub's, which has nothing to do with it


def _job_range(words: list[str], found: Request) -> tuple[list[str], Request]:
    matched = _RANGE.fullmatch(words[0]) if words else None
    if matched is None:
        return words, found
    first, last = int(matched[2]), int(matched[3] or matched[2])
    if first > last or first <= 0:
        raise RequestError(f"invalid job range {words[0]}: it goes from 1 or more to that or more")
    return words[1:], replace(found, job_name=matched[1], first=first, last=last)


def _number(switch: str, words: Sequence[str]) -> int:
    if not words or not words[0].isdecimal():
        raise RequestError(f"{switch} takes a number, and this is {' '.join(words) or 'none'!r}")
    return int(words[0])


def _memory(text: str) -> str:
    """An amount as SGE has it: K, M and G of 1,024, or bytes; 0 asks for nothing."""
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise RequestError(f"--mem {text}: it is written such as 2G, 500M or a number of bytes")
    if not float(found[1]):
        return ""
    return found[1] + (f"{found[2].upper()}i" if found[2] else "")


def _quoted(word: str) -> str:
    if word and not re.search(r"\s", word):
        return word
    return f"'{word}'" if '"' in word else f'"{word}"'


def _exports(request: Request, environ: Mapping[str, str]) -> str:
    """The caller's PATH goes before the image's; with -V, all of its variables."""
    lines = [f"export PATH={shlex.quote(environ['PATH'])}:$PATH"] if environ.get("PATH") else []
    if request.with_environment:
        lines += [
            f"export {name}={shlex.quote(value)}"
            for name, value in sorted(environ.items())
            if name != "PATH"
            and name not in _OF_THIS_MACHINE
            and not name.startswith(_OF_THE_POD)
            and _VARIABLE.fullmatch(name)
        ]
    return "".join(f"{line}\n" for line in lines)


# --- Running it ---------------------------------------------------------------------------------------


def options_of(environ: Mapping[str, str]) -> argparse.Namespace:
    """Read what the jobs run in from the environment: options of `dlr map`."""
    parser = argparse.ArgumentParser(
        prog=ENVIRONMENT, add_help=False, exit_on_error=False, allow_abbrev=False
    )
    for name in ("--image", "--pod", "--kubeconfig", "--context"):
        parser.add_argument(name)
    parser.add_argument("-n", "--namespace")
    parser.add_argument("--workers", default="1:10")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--idle-seconds", type=int, default=60)
    try:
        found, unknown = parser.parse_known_args(shlex.split(environ.get(ENVIRONMENT, "")))
        least, _, most = found.workers.partition(":")
        found.least, found.most = int(least), int(most or least)
    except (argparse.ArgumentError, ValueError) as error:
        raise RequestError(f"{ENVIRONMENT} makes no sense: {error}.") from error
    if unknown or found.slots < 1:
        raise RequestError(f"{ENVIRONMENT} makes no sense: {' '.join(unknown) or 'a number is too small'}.")
    if not found.image and not found.pod:
        raise RequestError(
            f'say what the jobs run in: export {ENVIRONMENT}="--image kaldi:latest --pod pod.yaml", with a '
            "Pod template that mounts this file system."
        )
    return found


def workers_for(request: Request, allowed: argparse.Namespace) -> tuple[str, int]:
    """Return MIN:MAX Pods and the slots of each: no more jobs at a time than allowed, no Pod without one.

    A job with a GPU has its Pod alone.
    """
    at_once = min(request.max_jobs or len(request.numbers), len(request.numbers))
    slots = 1 if request.gpus else min(allowed.slots, at_once)
    most = max(1, min(allowed.most, at_once // slots if request.max_jobs else -(-at_once // slots)))
    return f"{min(allowed.least, most)}:{most}", slots


def pod_with_gpus(pod: str | None, gpus: int) -> dict[str, Any]:
    """Return the user's Pod template, whose first container has so many GPUs."""
    import yaml

    template = yaml.safe_load(Path(pod).read_text()) if pod else {}
    container = template.setdefault("spec", {}).setdefault("containers", [{}])[0]
    container.setdefault("name", "main")
    container.setdefault("resources", {}).setdefault("limits", {})["nvidia.com/gpu"] = str(gpus)
    return template


def run(words: Sequence[str], environ: Mapping[str, str], folder: Path) -> int:
    """Carry out one call, made in this folder, and return its exit code."""
    request, options = parse(words), options_of(environ)
    path = folder / script_path(request)
    for each in (path, folder / request.log):
        each.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(request, str(folder), environ))
    for number in request.numbers:  # what is there after this is of this call
        (folder / request.log_of(number)).unlink(missing_ok=True)
    workers, slots = workers_for(request, options)
    name = f"queue-{secrets.token_hex(3)}"
    cluster = [
        f"--{each}={value}"
        for each in ("namespace", "kubeconfig", "context")
        if (value := getattr(options, each))
    ]
    command = ["map", f"/bin/bash {shlex.quote(str(path))} {{}}", "--name", name, "--retries", "0", *cluster]
    command += ["--workers", workers, "--slots", str(slots), "--idle-seconds", str(options.idle_seconds)]
    command += ["--cpu", str(request.threads), *(["--memory", request.memory] if request.memory else [])]
    command += ["--image", options.image] if options.image else []
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as template:
        if request.gpus:
            import yaml

            yaml.safe_dump(pod_with_gpus(options.pod, request.gpus), template)
            template.flush()
            options.pod = template.name
        command += ["--pod", options.pod] if options.pod else []
        delete = [*_dlr(), "job", "delete", name, "--no-wait", *cluster]
        code, said = _dlr_map(command, folder, "".join(f"{number}\n" for number in request.numbers), delete)
    left = folder / f"{name}.left"
    failed = left.read_text().split() if left.is_file() else []
    left.unlink(missing_ok=True)
    if code and (not failed or " failed (" not in said):  # else these are jobs that have failed
        raise RequestError(
            said.strip().rpartition("\n")[2].removeprefix("dlr: ") or f"dlr map ended with {code}"
        )
    _require_logs(request, folder)
    subprocess.run(delete, capture_output=True, check=False)
    return _conclude(request, folder, len(failed))


def _dlr() -> list[str]:
    found = shutil.which("dlr")
    return [found] if found else [sys.executable, "-m", "dlr.cli"]


def _dlr_map(words: Sequence[str], folder: Path, lines: str, delete: Sequence[str]) -> tuple[int, str]:
    """Run it to its end; a signal deletes the jobs, and then ends this program."""
    child = subprocess.Popen(
        [*_dlr(), *words],
        cwd=folder,
        text=True,
        start_new_session=True,  # Ctrl-C is for this program
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )

    def end(signum: int, _frame: object) -> None:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(60)
        subprocess.run(delete, capture_output=True, check=False)
        print(f"{NAME}: {signal.Signals(signum).name}: the jobs are deleted", file=sys.stderr, flush=True)
        os._exit(128 + signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, end)
    _, said = child.communicate(lines)
    return child.returncode, said


def _require_logs(request: Request, folder: Path) -> None:
    """Wait for the logs, which a recipe reads next."""
    missing = [folder / request.log_of(number) for number in request.numbers]
    for seconds in (0.0, *LOG_WAITS_SECONDS):
        time.sleep(seconds)
        missing = [path for path in missing if not path.exists()]
        if not missing:
            return
    raise RequestError(
        f"Log-file {missing[0]} does not exist: do the Pods see {folder}? A Pod template with a volume that "
        f"mounts it there goes into {ENVIRONMENT}, as --pod FILE."
    )


def _conclude(request: Request, folder: Path, failed: int) -> int:
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
        print(f"{NAME}: {failed} / {all_} failed, log is in {request.log_of('*')}", file=sys.stderr)
    return 1


def main() -> int:
    """Run the program."""
    try:
        return run(sys.argv[1:], os.environ, Path.cwd())
    except (RequestError, OSError) as error:
        message = str(error)
        print(message if message.startswith("Usage") else f"{NAME}: {message}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
