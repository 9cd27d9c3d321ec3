"""The request of a call of queue.pl, and the script that each of its jobs runs. Pure.

The command line, the quoting, the log's first and last lines, and what counts as a failure are those of
Kaldi's utils/parallel/queue.pl, with the last line of run.pl's log beside: recipes read both.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from dlr.commands.map.manifest import Workers
from dlr.kube.amounts import times

NAME = "dlr-queue.pl"
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


class RequestError(ValueError):
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
    """Read the arguments of a call.

    Raises:
        RequestError: they make no sense.
    """
    if len(words) < 2:
        raise RequestError(USAGE)
    left, found = list(words), Request("", ())
    for _ in range(2):  # JOB=1:n may stand between the options
        left, found = _options(left, found)
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
    """What runs for a job, with its number as the only argument.

    Args:
        folder: where the call was made.
        environ: of the call.
    """
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


def within(request: Request, workers: Workers) -> Workers:
    """The workers with what the jobs ask for: no more jobs at a time than allowed, and no Pod without one.

    A job with a GPU has its Pod alone.
    """
    at_once = min(request.max_jobs or len(request.numbers), len(request.numbers))
    slots = 1 if request.gpus else min(workers.slots, at_once)
    most = max(1, min(workers.most, at_once // slots if request.max_jobs else -(-at_once // slots)))
    requests = {"cpu": times(str(request.threads), slots)}
    if request.memory:
        requests["memory"] = times(request.memory, slots)
    limits = {"nvidia.com/gpu": str(request.gpus)} if request.gpus else {}
    least = min(workers.least, most)
    return replace(workers, least=least, most=most, slots=slots, requests=requests, limits=limits)


def _options(words: list[str], found: Request) -> tuple[list[str], Request]:
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
