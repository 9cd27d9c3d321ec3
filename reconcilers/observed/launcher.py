"""The launcher that a container's command is certain to start, and whose agent so reports how training ends.

A command may start one and nobody can see it (a script, an entrypoint), or may end well before it does so
(`test -f done && exit 0; torchrun train.py`). Then no report is expected, and exit code 0 is success. Pure.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from crds.dlrover import LAUNCHER, RENDEZVOUS_BACKEND, options
from crds.names import POD_COMMANDS

Object = Mapping[str, Any]

TORCHRUN = "torchrun"
LAUNCHERS = (TORCHRUN, LAUNCHER)
MODULES = {"torch.distributed.run": TORCHRUN, "dlrover.trainer.torch.elastic_run": LAUNCHER}
"""Modules that `python -m` starts, and the launcher of the same flags."""
SHELL = re.compile(r"(?:ba|da|a|z|k)?sh")
PYTHON = re.compile(r"python[\d.]*")
MAX_TEXT = 16_384
"""Characters of a shell's text; a longer one is not read."""

_OF_A_CHECK = "check-worker"
"""The command of `dlr` whose agent reports nothing of training."""
_OUR_BACKENDS = ("dlr", RENDEZVOUS_BACKEND)
_ELSEWHERE = ("PET_RDZV_BACKEND", "PET_STANDALONE")
"""Variables by which torchrun is told of a rendezvous that is not the job's."""
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_OPERATORS = ";&|()<>"
_PREFIXES = frozenset({"exec", "time", "nohup", "env", "command", "{", "!"})
"""Words of a shell's text behind which a command begins."""
_BRANCHES = frozenset(
    {"if", "case", "while", "until", "for", "select", "[", "[[", "test", "exit", "return", "||"}
)
"""Words of a shell's text behind which a command may be left out."""
_ASSIGNMENT = re.compile(r"\w+=")


def launcher_of(container: Object) -> str:
    """Return the launcher that the container's command is certain to start; empty where there is none.

    Args:
        container: with the variables that the controller sets, and before the agent is injected.
    """
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    started = launched(words)
    if started is None and words and SHELL.fullmatch(posixpath.basename(words[0])):
        place, _ = place_of_text(words)
        started = _launched_by_text(words[place]) if place is not None else None
    if started is None:
        return ""
    name, arguments = started
    if name == TORCHRUN and _may_meet_elsewhere(arguments, container):
        return ""
    return "" if arguments[:1] == [_OF_A_CHECK] else name


def launched(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the launcher, or `dlr`, that a command names, and its arguments; None for any other command."""
    if not words:
        return None
    name = posixpath.basename(words[0])
    if name in LAUNCHERS or (name == "dlr" and words[1:2] and words[1] in POD_COMMANDS):
        return name, list(words[1:])
    if PYTHON.fullmatch(name):
        flags = 1
        while words[flags : flags + 1] and words[flags].startswith("-") and words[flags] != "-m":
            flags += 2 if words[flags] in ("-W", "-X") else 1
        option, module = (*words[flags : flags + 2], "", "")[:2]
        if option == "-m" and module in MODULES:
            return MODULES[module], list(words[flags + 2 :])
    return None


def place_of_text(words: Sequence[str]) -> tuple[int | None, bool]:
    """Return which word of a shell's command is the text that it runs, and whether it is a login shell.

    The text, where there is one, is the first word behind the options, if `-c` is among them.
    https://pubs.opengroup.org/onlinepubs/9799919799/utilities/sh.html
    """
    letters, place = "", 1
    while place < len(words) and len(words[place]) > 1 and words[place][0] in "-+":
        option = words[place]
        place += 1
        if option == "--":
            break
        if option.startswith("--"):
            letters += "l" if option == "--login" else ""
            place += option in ("--rcfile", "--init-file")
        else:
            letters += option[1:] if option[0] == "-" else ""
            place += "o" in option.lower()  # `-o pipefail`, of bash `-O extglob`
    return (place if "c" in letters and place < len(words) else None), "l" in letters


def _launched_by_text(text: str) -> tuple[str, list[str]] | None:
    """Return the launcher that a shell's text starts whatever else happens, and its arguments."""
    if len(text) > MAX_TEXT or "<<" in text or any(name in text for name in _ELSEWHERE):
        return None
    words = _shell_words(text)
    at_start = True
    for number, word in enumerate(words):
        if word[0] in _OPERATORS:
            if "||" in word or word == "()":  # a function's body runs only if it is called
                return None
            at_start = not set(word) & set("<>")
        elif at_start:
            if word in _BRANCHES:
                return None
            if word in _PREFIXES or _ASSIGNMENT.match(word):
                continue
            at_start = False
            ends = (place for place in range(number, len(words)) if words[place][0] in _OPERATORS)
            if started := launched(words[number : next(ends, len(words))]):
                return started
    return None


def _shell_words(text: str) -> list[str]:
    """Return the words and operators of a shell's text; none where a quote has no end."""
    text = _COMMENT.sub("", text.replace("\\\n", " ")).replace("\n", ";")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return [word or "''" for word in lexer]
    except ValueError:
        return []


def _may_meet_elsewhere(arguments: Sequence[str], container: Object) -> bool:
    """Whether torchrun may have a rendezvous that is not the job's: then the image's own torchrun runs."""
    for flag in options(arguments):
        if flag.name in ("standalone", "h", "help"):
            return True
        if flag.name == "rdzv-backend" and flag.value not in _OUR_BACKENDS:
            return True
    for variable in container.get("env") or ():
        if variable["name"] == "PET_STANDALONE":
            return True
        if variable["name"] == "PET_RDZV_BACKEND" and variable.get("value") not in _OUR_BACKENDS:
            return True
    return False
