"""What is injected runs on the oldest Python that we promise, though it is written and tested on a newer one.

Which names of the standard library are newer is in the stubs that come with mypy.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import mypy
import pytest
import urllib3  # noqa: F401 - whose import opens a socket, to see whether there is IPv6

from dlr.bundle.agent import _sources
from dlr.commands.dispatch import CANNOT_LOAD, call

ROOT = Path(__file__).parents[2]
OLDEST = (3, 10)
STUBS = Path(mypy.__file__).parent / "typeshed/stdlib"
NEWER_MODULES = {
    module
    for module, major, minor in re.findall(r"(?m)^([\w.]+): (\d+)\.(\d+)-", (STUBS / "VERSIONS").read_text())
    if (int(major), int(minor)) > OLDEST
}


@pytest.fixture(autouse=True, scope="module")
def no_collection() -> Iterator[None]:
    """CPython 3.11 counts the depth of all trees that it builds in one place: a collection that has one built
    while another is built ends the latter in a SystemError (https://github.com/python/cpython/issues/106905)."""
    gc.disable()
    yield
    gc.enable()


def defined(body: list[ast.stmt], version: tuple[int, int]) -> Iterator[str]:
    """What a stub defines at its top level for a version of Python."""
    for each in body:
        if isinstance(each, ast.If):
            holds = eval(
                ast.unparse(each.test),
                {
                    "sys": type("Sys", (), {"version_info": version, "platform": "linux"}),
                    "TYPE_CHECKING": False,
                },
            )
            yield from defined(each.body if holds else each.orelse, version)
        elif isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield each.name
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(each, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in each.names)


@cache
def newer_names(module: str) -> frozenset[str]:
    """Those that the oldest Python does not have, and this one has."""
    stub = STUBS / f"{module.replace('.', '/')}.pyi"
    if not stub.exists():
        stub = stub.with_suffix("") / "__init__.pyi"
    if not stub.exists():
        return frozenset()
    body = ast.parse(stub.read_text()).body
    return frozenset(defined(body, sys.version_info[:2])) - frozenset(defined(body, OLDEST))


def too_new(source: str) -> set[str]:
    """The modules and names that the source takes from the standard library and the oldest Python lacks."""
    tree, found = ast.parse(source, feature_version=OLDEST), set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            found |= {alias.name for alias in each.names} & NEWER_MODULES
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            found |= {each.module} & NEWER_MODULES
            found |= {alias.name for alias in each.names} & newer_names(each.module)
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            found |= {each.attr} & newer_names(each.value.id)
        elif isinstance(each, ast.Name):
            found |= {each.id} & newer_names("builtins")
    return found


def test_the_package_promises_that_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, OLDEST))}"


PROMISE_THEMSELVES = ("urllib3/", "tenacity/")


def test_what_is_injected_needs_nothing_newer() -> None:
    """What is vendored promises as much itself, and asks for the version where it takes more."""
    ours = {path: source for path, source in _sources() if not path.startswith(PROMISE_THEMSELVES)}
    assert len(ours) > 100
    assert {path: names for path, source in ours.items() if (names := too_new(source))} == {}


BEFORE_THE_SENTENCE = (
    "cli",
    "commands/__init__",
    "commands/dispatch",
    "kube/__init__",
    "kube/errors",
    "commands/interrupts",
)
"""What of the command line is imported before a Python is found to be too old for the rest."""


def test_the_command_line_says_that_it_needs_a_newer_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in BEFORE_THE_SENTENCE:
        assert too_new((ROOT / f"dlr/{module}.py").read_text()) == set(), module
    monkeypatch.setattr("sys.version_info", (*OLDEST, 0, "final", 0))
    with pytest.raises(SystemExit) as ended:
        call(["job", "list"])
    assert ended.value.code == CANNOT_LOAD
    assert capsys.readouterr().err == (
        "dlr: this command needs Python 3.11 or newer, and this is 3.10; `dlr run` works here\n"
    )


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from datetime import UTC, datetime", {"UTC"}),
        ("from enum import Enum, StrEnum", {"StrEnum"}),
        ("import hashlib\nhashlib.file_digest(file, 'sha256')", {"file_digest"}),
        ("import tomllib", {"tomllib"}),
        ("from typing import Self", {"Self"}),
        ("try:\n    pass\nexcept BaseExceptionGroup:\n    pass", {"BaseExceptionGroup"}),
        ("import os\nos.environ\nfrom zoneinfo import ZoneInfo", set()),
    ],
)
def test_what_is_newer_is_found(source: str, found: set[str]) -> None:
    assert too_new(source) == found
