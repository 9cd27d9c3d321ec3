"""The program of a launched job: a script or a function that is shipped with it, or a path in its image.

A function is shipped as source, so it must be self-contained: it imports what it needs, and its arguments are
JSON. Other functions are refused with a sentence, before anything is created in a cluster.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import os
import symtable
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from dlr.client.local_imports import local_import
from dlr.kube.errors import UsageError

FOLDER = "/tmp/dlr-code"
"""Folder of the shipped file in a Pod."""
MAX_SOURCE = 1_048_576 - 1_024
"""Largest source, in bytes: a ConfigMap holds 1 MiB, with its keys.
https://kubernetes.io/docs/concepts/configuration/configmap/"""
ELSEWHERE = (
    "build it into the image, or put it on a volume of the Pods, and name its path there "
    "(`dlr job launch --in-image PATH`, `dlr.InImage(PATH)`)"
)

FUTURE = "from __future__ import annotations\n\n"
"""First line of shipped code: annotations may name things that are not needed to run."""

_ENTRY = """

if __name__ == "__main__":
    import json as _json

    import dlr as _dlr

    _arguments = _json.loads({arguments!r})
    _result = {name}(**_arguments)
    _dlr.report_result(_result)
"""


_OPTIONAL = """
try:
    import {module}
except ImportError:
    pass  # the function's own access fails then, too
"""


@dataclass(frozen=True)
class InImage:
    """Path of a script in the image, or on a volume of the Pods."""

    path: str


@dataclass(frozen=True)
class Program:
    """Program of the training processes."""

    path: str
    """Path of the script in a Pod."""
    arguments: tuple[str, ...] = ()
    source: str | None = None
    """Text of the script, shipped with the job; None if Pods have the script."""

    @property
    def filename(self) -> str:
        return self.path.rpartition("/")[2]


def program_of(
    target: Callable[..., Any] | str | os.PathLike[str] | InImage,
    arguments: Mapping[str, Any] | Sequence[str],
) -> Program:
    """Return the program for a function, a script of this machine, or a script in the image.

    Args:
        arguments: arguments of a function by name, or command-line arguments of a script.

    Raises:
        UsageError: the program cannot be shipped.
    """
    if callable(target):
        return of_function(target, arguments)
    if isinstance(arguments, (Mapping, str)):
        raise UsageError('A script takes its arguments as words, such as ["--lr", "0.1"].')
    words = tuple(map(str, arguments))
    if isinstance(target, InImage):
        return Program(target.path, words)
    if not isinstance(target, (str, os.PathLike)):
        raise UsageError(f"Name a function, a script, or dlr.InImage(path), and not {target!r}.")
    return of_script(Path(target), words)


def of_script(path: Path, arguments: Sequence[str] = ()) -> Program:
    """Return the program for a Python script of this machine."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory, and one file is shipped: name that; or {ELSEWHERE}.")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The script {path} cannot be read: {error.strerror}.") from error
    _refuse_if_too_large(len(source), str(path))
    try:
        text = source.decode()
    except UnicodeDecodeError:
        raise UsageError(f"The script {path} is not UTF-8 text.") from None
    _refuse_local_imports(text, path.parent, f"The script {path}")
    return Program(f"{FOLDER}/{path.name}", tuple(arguments), text)


def of_function(
    function: Callable[..., Any], arguments: Mapping[str, Any] | Sequence[str] | None = None
) -> Program:
    """Return the program for a function: imports of the modules that it uses, its source, and a call."""
    if arguments is not None and not isinstance(arguments, Mapping):
        if len(arguments):
            raise UsageError('A function takes its arguments by name, such as {"lr": 0.1}.')
        arguments = {}
    name = getattr(function, "__name__", type(function).__name__)
    if not isinstance(function, FunctionType):
        raise UsageError(f"{name} is no plain function, and only those can be shipped: write a `def` for it.")
    if name == "<lambda>":
        raise UsageError("A lambda cannot be shipped: write a `def` for it.")
    if inspect.isgeneratorfunction(function):
        raise UsageError(
            f"The function {name} has a `yield`, so that nothing of it would run: write it without."
        )
    if function.__closure__:
        captured = ", ".join(function.__code__.co_freevars)
        raise UsageError(
            f"The function {name} is a closure over {captured}, which stays here: give it as an argument."
        )
    source = _source_of(function, name)
    text = json_of(dict(arguments or {}), name)
    try:
        inspect.signature(function).bind(**(arguments or {}))
    except TypeError as error:
        raise UsageError(f"The function {name} cannot be called with these arguments: {error}.") from None
    used = dict(_modules_of(function, source, name))
    modules = "".join(f"import {module} as {alias}\n" for alias, module in used.items())
    modules += "".join(_OPTIONAL.format(module=module) for module in _submodules(function, source, used))
    head = f'"""The function {name}, shipped by dlr."""\n\n{FUTURE}{modules}\n\n'
    shipped = f"{head}{source.rstrip()}\n{_ENTRY.format(name=name, arguments=text)}"
    _refuse_if_too_large(len(shipped.encode()), f"function {name}")
    _refuse_local_imports(shipped, Path(inspect.getsourcefile(function) or "").parent, f"The function {name}")
    return Program(f"{FOLDER}/{name}.py", (), shipped)


def json_of(arguments: Mapping[str, Any], name: str) -> str:
    for key, value in arguments.items():
        try:
            if json.loads(json.dumps(value)) != value:
                raise TypeError(f"a {type(value).__name__} comes back as something else")
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"The argument {key} of {name} cannot be shipped, since it is no JSON: {error}."
            ) from None
    return json.dumps(arguments)


def _source_of(function: FunctionType, name: str) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError):
        raise UsageError(
            f"The source of {name} is not known here, so it cannot be shipped: define it in a file or in a "
            "notebook's cell."
        ) from None
    if not isinstance(tree, ast.FunctionDef):
        raise UsageError(f"{name} is no plain function (`def`), and only those can be shipped.")
    if tree.decorator_list:
        raise UsageError(f"The function {name} has a decorator, which stays here: call that inside of it.")
    return source


def _modules_of(function: FunctionType, source: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield name and module of the globals that the function uses, which may only be modules."""
    for used in sorted(_global_names(symtable.symtable(f"{FUTURE}{source}", name, "exec"))):
        if used == name or hasattr(builtins, used):
            continue
        value = function.__globals__.get(used)
        if used not in function.__globals__:
            raise UsageError(f"The function {name} uses {used}, which is not defined: define it inside.")
        if not isinstance(value, ModuleType):
            raise UsageError(
                f"The function {name} uses {used}, which is defined outside of it and stays here: define or "
                "import it inside, or give it as an argument."
            )
        yield used, value.__name__


def _submodules(function: FunctionType, source: str, used: Collection[str]) -> list[str]:
    """Return the modules that the function uses as attributes of others, such as `xml.etree`, in order."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names, node = [node.attr, *names], node.value
        if not isinstance(node, ast.Name) or node.id not in used:
            continue
        module = function.__globals__[node.id]
        for attribute in names:
            path = f"{module.__name__}.{attribute}"
            module = vars(module).get(attribute)
            if not isinstance(module, ModuleType) or sys.modules.get(path) is not module:
                break
            found.add(path)
    return sorted(found)


def _global_names(table: symtable.SymbolTable) -> set[str]:
    """Return the names that are used, but bound nowhere in the source, except in annotations."""
    at_top = table.get_type() == "module"
    found = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or (at_top and not symbol.is_assigned()))
    }
    for child in table.get_children():
        if child.get_type() in ("function", "class"):
            found |= _global_names(child)
    return found


def _refuse_local_imports(source: str, folder: Path, what: str) -> None:
    found = local_import(source, folder)
    if found is not None:
        raise UsageError(
            f"{what} imports {found.name}, and {found.path.name} beside it is not shipped: write both in one "
            f"file, install {found.path.stem} as a package here and in the image, or, with all its files, "
            f"{ELSEWHERE}."
        )


def _refuse_if_too_large(size: int, what: str) -> None:
    if size > MAX_SOURCE:
        raise UsageError(
            f"The {what if what.startswith('function') else 'script ' + what} has {size / 1e6:.1f} MB, and a "
            f"ConfigMap holds 1 MiB: {ELSEWHERE}."
        )
