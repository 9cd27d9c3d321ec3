"""Converts the command by which a container starts training to that of an ElasticJob."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from crds.dlrover import FLAGS, Option, ignored, options

OF_THE_WORLD = frozenset(
    {
        *("nnodes", "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
        *("master-addr", "master-port", "standalone", "local-addr", "max-restarts"),
    }
)
"""torchrun's flags that fields of the ElasticJob replace, or that dlr decides."""

_SHELL = re.compile(r"(?:ba|da|a|z|k)?sh")
_PYTHON = re.compile(r"python[\d.]*")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "dlrover.trainer.torch.elastic_run")
_LAUNCHERS = ("torchrun", "dlrover-run")
_WRAPPERS = ("env", "tini", "dumb-init", "numactl", "nice", "nohup", "stdbuf")
"""Programs that run the command after their own flags."""
_PYTHON_FLAGS = "-[bBdEiIOPqRsSuvVx]+"
_VALUELESS_PYTHON_FLAGS = re.compile(_PYTHON_FLAGS)
_IN_TEXT = re.compile(
    rf"(?<![\w./-])(?:\S*/)?(?:torchrun|dlrover-run|dlr\s+run|python[\d.]*(?:\s+{_PYTHON_FLAGS})*\s+-m\s+"
    rf"(?:{'|'.join(map(re.escape, _MODULES))}))(?=\s)"
)
_COMMENT = re.compile(r"(?:^|\s)#.*\Z")
_BLANKS = re.compile(r"(?:[ \t]|\\\n)*")


@dataclass
class Launched:
    """The command of an ElasticJob's container."""

    command: list[str]
    least: int | None = None
    restarts: int | None = None
    fields: dict[str, str] = field(default_factory=dict)
    """Fields of the ElasticJob's spec, by path, in place of flags of DLRover's launcher."""
    dropped: list[str] = field(default_factory=list)
    """Flags that are not needed."""
    lost: list[str] = field(default_factory=list)
    """Flags without an equivalent, each with the reason."""


def launched(words: Sequence[str], processes: str | None) -> Launched:
    """Return the command of an ElasticJob that is equivalent to a container's `command` and `args`.

    A launcher of torch stays, without the flags of the rendezvous. `dlr run` starts any other program in each
    process.

    Args:
        words: `command` and `args`, not empty.
        processes: processes of each Pod, if the manifest has them outside of the command.
    """
    name = posixpath.basename(words[0])
    flags = _launcher_length(words)
    if flags:
        return _with_flags(words[:flags], words[flags:], processes)
    if _SHELL.fullmatch(name):
        for place, word in enumerate(words[1:], 1):
            if launcher := _launcher_in(word):
                return _in_text(words, place, launcher, processes)
    if name in _WRAPPERS:
        for place in range(1, len(words)):
            if _launcher_length(words[place:]) or _SHELL.fullmatch(posixpath.basename(words[place])):
                wrapped = launched(words[place:], processes)
                wrapped.command = [*words[:place], *wrapped.command]
                return wrapped
    run = ["dlr", "run", f"--nproc-per-node={processes or 1}"]
    rest = words[_interpreter_length(words) :]
    if len(rest) < len(words) and rest and (rest[0] == "-m" or not rest[0].startswith("-")):
        return Launched([*run, *rest])
    return Launched([*run, "--no-python", *words])


def _launcher_length(words: Sequence[str]) -> int:
    """Return the number of words that name the launcher; 0 if the command begins with none."""
    name = posixpath.basename(words[0])
    if name in _LAUNCHERS:
        return 1
    if name == "dlr" and words[1:2] == ["run"]:
        return 2
    place = _interpreter_length(words)
    is_module = place and list(words[place : place + 1]) == ["-m"]
    return place + 2 if is_module and {*words[place + 1 : place + 2]}.intersection(_MODULES) else 0


def _interpreter_length(words: Sequence[str]) -> int:
    """Return the number of words of Python and its flags without values; 0 for another program."""
    if not _PYTHON.fullmatch(posixpath.basename(words[0])):
        return 0
    place = 1
    while place < len(words) and _VALUELESS_PYTHON_FLAGS.fullmatch(words[place]):
        place += 1
    return place


def _with_flags(launcher: Sequence[str], rest: Sequence[str], processes: str | None) -> Launched:
    found = options(rest)
    script = list(rest[sum(len(option.words) for option in found) :])
    result = Launched([])
    kept = [option for option in found if not _takes(option, result)]
    _obey_dlrover(found, result)
    words = [word for option in kept for word in option.words]
    if processes and not any(option.name == "nproc-per-node" for option in kept):
        words.insert(0, f"--nproc-per-node={processes}")
    result.command = [*launcher, *words, *script]
    return result


def _takes(option: Option, result: Launched) -> bool:
    """Move a flag from the command into the result, if it belongs there; return whether it does."""
    if option.name in FLAGS:
        return FLAGS[option.name].ignored
    value = option.value or ""
    if option.name not in OF_THE_WORLD and not (
        option.name == "nproc-per-node" and "PET_NPROC_PER_NODE" in value  # which other operators set
    ):
        return False
    if option.name == "max-restarts" and value.isdigit():
        result.restarts = int(value)
    elif option.name == "nnodes":
        least, _, most = value.partition(":")
        result.least = int(least) if most and least.isdigit() else None
    result.dropped.append(f"--{option.name}" + (f"={value}" if value else ""))
    return True


def _obey_dlrover(found: Sequence[Option], result: Launched) -> None:
    for each in ignored(found):
        if each.flag.field:
            result.fields[each.flag.field] = each.setting
        else:
            result.lost.append(f"{each.text}: {each.flag.remark}")


def _launcher_in(text: str) -> re.Match[str] | None:
    """Return the first launcher in a shell's text that is in no comment."""
    found = _IN_TEXT.finditer(text)
    return next(
        (each for each in found if not _COMMENT.search(text[: each.start()].rpartition("\n")[2])), None
    )


def _in_text(words: Sequence[str], place: int, launcher: re.Match[str], processes: str | None) -> Launched:
    """Convert a shell's text with a launcher: only the launcher's flags are cut out."""
    text = words[place]
    spans = _words_of_text(text, launcher.end())
    result = Launched([])
    found = options([re.sub("[\"']", "", text[start:end]) for start, end in spans])
    at, cut, has_processes = 0, [], False
    for option in found:
        span = spans[at][0], spans[at + len(option.words) - 1][1]
        at += len(option.words)
        if _takes(option, result):
            cut.append(span)
        else:
            has_processes |= option.name == "nproc-per-node"
    _obey_dlrover(found, result)
    for start, end in reversed(cut):
        text = text[:start] + text[end:].lstrip(" ")
    if processes and not has_processes:
        text = f"{text[: launcher.end()]} --nproc-per-node={processes}{text[launcher.end() :]}"
    result.command = [*words[:place], text, *words[place + 1 :]]
    return result


def _words_of_text(text: str, at: int) -> list[tuple[int, int]]:
    """Return start and end of each word from `at` to the end of that command, across continued lines."""
    spans: list[tuple[int, int]] = []
    while True:
        blanks = _BLANKS.match(text, at)
        assert blanks is not None
        start, at = blanks.end(), _end_of(text, blanks.end(), " \t\n;&|)")
        if start == at or text[start] == "#":
            return spans
        spans.append((start, at))


def _end_of(text: str, at: int, ends: str) -> int:
    """Return the index of the first of `ends` outside of quotes and substitutions."""
    is_quoted = ends == '"'
    while at < len(text) and text[at] not in ends:
        opened = text[at]
        at += 1
        if opened == "\\":
            at += 1
        elif opened == "'" and not is_quoted:
            at = (text.find("'", at) + 1) or len(text)
        elif opened in '"`':
            at = _end_of(text, at, opened) + 1
        elif opened == "$" and text[at : at + 1] in ("(", "{"):
            at = _end_of(text, at + 1, ")" if text[at] == "(" else "}") + 1
        elif opened == "(" and not is_quoted:
            at = _end_of(text, at, ")") + 1
    return min(at, len(text))
