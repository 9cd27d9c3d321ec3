"""docs/cli-reference.md, from the commands themselves: `python -m dlr.commands.reference` writes it."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from typer.models import OptionInfo, ParameterInfo

from dlr.commands.application import Commands
from dlr.commands.lazy import LazyGroup

FILE = Path(__file__).parents[2] / "docs" / "cli-reference.md"
HEAD = """\
# Reference of the dlr command

Generated from the commands by `python -m dlr.commands.reference`; do not edit. [cli.md](cli.md) explains
them. In brackets is the default of an option. `--context`, `--kubeconfig` and `-n` may also stand in front of
a command, as in `dlr -n team-a job list`.
"""


@dataclass(frozen=True)
class Parameter:
    """An argument or option of a command, from its function's signature."""

    name: str
    info: Any
    """The `ParameterInfo` of typer in `Annotated`."""
    kinds: tuple[Any, ...]
    """The types of its value, without None and lists."""
    default: Any
    """The default; `inspect.Parameter.empty` without one."""

    @property
    def is_option(self) -> bool:
        return isinstance(self.info, OptionInfo)

    @property
    def flags(self) -> list[str]:
        # In an annotation typer takes the first name for the default.
        named = [each for each in (self.info.default, *(self.info.param_decls or ())) if _is_flag(each)]
        return named or [f"--{self.name.replace('_', '-')}"]

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def usage(self) -> str:
        """Return the option as it stands in a command line."""
        if not self.is_option:
            shown = self.info.metavar or self.name.upper()
            return shown if self.is_required or shown.startswith("[") else f"[{shown}]"
        if bool in self.kinds:
            negative = self.default is True and len(self.flags) == 1 and "/" not in self.flags[0]
            return ", ".join(self.flags) + (f", --no-{self.name.replace('_', '-')}" if negative else "")
        return f"{', '.join(self.flags)} {self.info.metavar or _values(self.kinds[0])}"

    def text(self) -> str:
        """Return the help, and the default."""
        text = re.sub(r"\s+", " ", self.info.help or "")
        if self.is_required:
            return f"{text} Required." if self.is_option else text
        if self.default in (None, False, "") or "efault" in text:
            return text
        if self.default is True:
            return f"{text} [{self.flags[0].partition('/')[0]}]"
        return f"{text} [{getattr(self.default, 'value', self.default)}]"


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (name, function) of all, each name as a person types it."""
    yield from _of_group(Commands, "dlr")


def _of_group(group: type[LazyGroup], prefix: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, lazy in group.lazy.items():
        full = f"{prefix} {name}"
        found = getattr(importlib.import_module(lazy.module), lazy.function)
        if not isinstance(found, typer.Typer):
            yield full, found
        elif isinstance(found.info.cls, type) and issubclass(found.info.cls, LazyGroup):
            yield from _of_group(found.info.cls, full)
        else:
            if found.registered_callback is not None and found.registered_callback.callback is not None:
                yield full, found.registered_callback.callback
            for each in found.registered_commands:
                if each.callback is not None:
                    yield f"{full} {each.name or each.callback.__name__}", each.callback


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        metadata = getattr(hints[name], "__metadata__", ())
        info = next((each for each in metadata if isinstance(each, ParameterInfo)), None)
        if info is not None and not info.hidden:
            kinds = tuple(_plain(hints[name].__origin__))
            found.append(Parameter(name, info, kinds, parameter.default))
    return found


def _plain(hint: Any) -> Iterator[Any]:
    arguments = typing.get_args(hint)
    if not arguments:
        if hint is not type(None):
            yield hint
        return
    for each in arguments:
        yield from _plain(each)


def _is_flag(text: Any) -> bool:
    return isinstance(text, str) and text.startswith("-")


def _values(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(each.value) for each in kind)
    return "NUMBER" if kind in (int, float) else "TEXT"


def reference() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(_section(name, function) for name, function in commands())])


def _section(name: str, function: Callable[..., Any]) -> str:
    found = parameters_of(function)
    options = [each for each in found if each.is_option]
    arguments = [each for each in found if not each.is_option]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *(each.usage() for each in arguments)])
    parts = [f"## {name}\n", inspect.cleandoc(function.__doc__ or "") + "\n", f"    {usage}\n"]
    described = [each for each in (*arguments, *options) if each.info.help]
    if described:
        rows = [f"| `{_cell(each.usage())}` | {_cell(each.text())} |" for each in described]
        parts.append("\n".join(["| | |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FILE.write_text(reference())
