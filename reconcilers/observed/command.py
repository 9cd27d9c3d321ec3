"""Launchers in a container's command, as words or in a shell's text, and their flags. Pure.

A command may start a launcher unseen (a script, an entrypoint), or succeed before it starts one
(`test -f done && exit 0; torchrun train.py`). If a launcher is *certain* to start, its agent reports how
training ends, and exit code 0 without a report is no success. Flags, on the other hand, are read of any
launcher in the command.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crds.dlrover import BACKENDS, LAUNCHER, Option, options
from crds.names import POD_COMMANDS

Object = Mapping[str, Any]

TORCHRUN = "torchrun"
OURS = "dlr"
LAUNCHERS = (TORCHRUN, LAUNCHER)
MODULES = {"torch.distributed.run": TORCHRUN, "dlrover.trainer.torch.elastic_run": LAUNCHER}
"""Launchers by the module that `python -m` starts; both take the same flags."""
SHELL = re.compile(r"(?:ba|da|a|z|k)?sh")
PYTHON = re.compile(r"python[\d.]*")
MAX_TEXT = 16_384
"""Most characters read of a command; a launcher in a longer text is not certain to start."""
MAX_NESTED = 3
"""Depth to which shells within a shell's text are read."""

_OF_A_CHECK = "check-worker"
"""Command of `dlr` whose agent does not report on training."""
_ELSEWHERE = ("PET_RDZV_BACKEND", "PET_STANDALONE")
"""Variables that give torchrun another rendezvous than the job's."""
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_KUBERNETES_REFERENCE = re.compile(r"\$\((\w+)\)")
_SUBSTITUTION = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`")
"""`$((…))`, `$(…)` and the latter's old form with backquotes: one unknown word each."""
_OPERATORS = ";&|()<>"
_PREFIXES = frozenset({"exec", "time", "nohup", "env", "command", "{", "!"})
"""Words of a shell's text after which a command begins."""
_BRANCHES = frozenset(
    {"if", "case", "while", "until", "for", "select", "[", "[[", "test", "exit", "return", "||"}
)
"""Words of a shell's text after which a command may be skipped."""
_ASSIGNMENT = re.compile(r"\w+=")


@dataclass(frozen=True)
class LauncherCommand:
    """A launcher in a command, with its arguments."""

    name: str
    arguments: tuple[str, ...]

    @property
    def flags(self) -> list[Option]:
        return options(self.arguments[1:] if self.name == OURS else self.arguments)


def launcher_of(container: Object) -> str:
    """Return the launcher that the container's command is certain to start; empty where there is none.

    Args:
        container: with the variables that the controller sets, and before the agent is injected.
    """
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    started = launched(words)
    if started is None and words and SHELL.fullmatch(posixpath.basename(words[0])):
        place, _ = place_of_text(words)
        started = _certain_in_text(words[place]) if place is not None else None
    if started is None or (started.name == TORCHRUN and _elsewhere(started, container)):
        return ""
    return "" if started.arguments[:1] == (_OF_A_CHECK,) else started.name


def launches_in(words: Sequence[str]) -> Iterator[LauncherCommand]:
    """Yield the launchers in a container's command in their order, certain to start or not."""
    return _launches(words, MAX_NESTED, is_text=False)


def flags_in(words: Sequence[str]) -> Sequence[Option]:
    """Return the flags of the first launcher; without one, those of an entrypoint with the same flags."""
    for launch in launches_in(words):
        return launch.flags
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    return options(words[first:])


def command_words(container: Object) -> tuple[str, ...]:
    """Return command and arguments, up to `MAX_TEXT` characters of them."""
    left, words = MAX_TEXT, list[str]()
    for word in (*(container.get("command") or ()), *(container.get("args") or ())):
        if left <= 0:
            break
        words.append(word[:left])
        left -= len(word) + 1
    return tuple(words)


def launched(words: Sequence[str]) -> LauncherCommand | None:
    """Return the launcher, or `dlr`, that a command names; None for any other command."""
    name, first = _launcher_at(words, 0) if words else ("", 0)
    return LauncherCommand(name, tuple(words[first:])) if name else None


def _launcher_at(words: Sequence[str], place: int) -> tuple[str, int]:
    """Return the launcher of a command that begins at a place, and the place of its first argument.

    Without one, the name is empty, and the place is where the next command may begin.
    """
    name = posixpath.basename(words[place])
    following = words[place + 1 : place + 2]
    if name in LAUNCHERS or (name == OURS and following and following[0] in POD_COMMANDS):
        return name, place + 1
    if PYTHON.fullmatch(name):
        flag = place + 1
        while flag < len(words) and words[flag].startswith("-") and words[flag] != "-m":
            flag += 2 if words[flag] in ("-W", "-X") else 1
        option, module = (*words[flag : flag + 2], "", "")[:2]
        if option == "-m" and module in MODULES:
            return MODULES[module], flag + 2
        return "", flag
    return "", place + 1


def place_of_text(words: Sequence[str]) -> tuple[int | None, bool]:
    """Return the place of the text that a shell's command runs, and whether it is a login shell.

    The text is the first word after the options, if `-c` is among them; otherwise there is none.
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


def _launches(words: Sequence[str], nested: int, *, is_text: bool) -> Iterator[LauncherCommand]:
    place = 0
    while place < len(words):
        name, after = _launcher_at(words, place)
        if name:
            place = _end_of_command(words, after) if is_text else len(words)
            yield LauncherCommand(name, tuple(words[after:place]))
            continue
        if nested and " " in words[place].strip():
            yield from _launches(shell_words(words[place])[0], nested - 1, is_text=True)
        place = after


def _end_of_command(words: Sequence[str], place: int) -> int:
    ends = (end for end in range(place, len(words)) if words[end][0] in _OPERATORS)
    return next(ends, len(words))


def _certain_in_text(text: str) -> LauncherCommand | None:
    """Return the launcher that a shell's text starts in any case."""
    if len(text) > MAX_TEXT or "<<" in text or any(name in text for name in _ELSEWHERE):
        return None
    words, is_complete = shell_words(text)
    at_start = is_complete
    for number, word in enumerate(words if is_complete else ()):
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
            if started := launched(words[number : _end_of_command(words, number)]):
                return started
    return None


def shell_words(text: str) -> tuple[list[str], bool]:
    """Return the words and operators of a shell's text, and whether every quote has an end.

    The text after an open quote is one word. Variables stay as they are.
    """
    text = _COMMENT.sub("", text.replace("\\\n", " ")).replace("\n", ";")
    text = _SUBSTITUTION.sub("$?", _KUBERNETES_REFERENCE.sub(r"${\1}", text))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            words.append(word or "''")
    except ValueError:
        return ([*words, lexer.token] if lexer.token else words), False
    return words, True


def rendezvous_elsewhere(container: Object) -> str:
    """Return the flag or variable by which the command's torchrun leaves dlr out; empty without one."""
    launches = launches_in(command_words(container))
    found = (_elsewhere(each, container) for each in launches if each.name == TORCHRUN)
    return next(filter(None, found), "")


def _elsewhere(torchrun: LauncherCommand, container: Object) -> str:
    """Return the setting by which the image's own torchrun runs, or may run; empty without one."""
    for flag in torchrun.flags:
        if flag.name in ("standalone", "h", "help"):
            return " ".join(flag.words)
        if flag.name == "rdzv-backend" and flag.value not in BACKENDS:
            return " ".join(flag.words)
    for variable in container.get("env") or ():
        if variable["name"] == "PET_STANDALONE":
            return "PET_STANDALONE"
        if variable["name"] == "PET_RDZV_BACKEND" and variable.get("value") not in BACKENDS:
            return "PET_RDZV_BACKEND"
    return ""
