"""What can be shipped to a Pod, and the sentence for what cannot."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlr.client.program import FOLDER, Program, of_function, of_script, program_of
from dlr.kube.errors import UsageError
from tests.client import functions

ROOT = Path(__file__).parents[2]


def result_of(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a shipped function leaves when it is run as a training process runs it."""
    assert program.source is not None
    script = folder / program.filename
    script.write_text(program.source)
    record = folder / "step.0"
    monkeypatch.setenv("DLR_PROGRESS_FILE", str(record))
    runpy.run_path(str(script), run_name="__main__")
    return json.loads((folder / "step.0.result").read_text())


def test_a_function_runs_as_it_does_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = of_function(functions.alone, {"lr": 0.5, "steps": 5})
    assert program.path == f"{FOLDER}/alone.py"
    assert result_of(program, tmp_path, monkeypatch) == {"value": functions.alone(0.5, 5)}


@pytest.mark.real
def test_submodules_that_a_function_reaches_come_along(tmp_path: Path) -> None:
    """In a process of its own: here they are imported."""
    program = of_function(functions.with_submodules)
    assert program.source is not None
    (tmp_path / "shipped.py").write_text(program.source)
    record = tmp_path / "step.0"
    environ = {**os.environ, "DLR_PROGRESS_FILE": str(record), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(tmp_path / "shipped.py")], check=True, env=environ, timeout=300)
    assert json.loads((tmp_path / "step.0.result").read_text()) == {"value": "&amp;a"}


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: 1, "A lambda cannot be shipped: write a `def` for it."),
        (functions.a_closure(), "is a closure over kept, which stays here"),
        (functions.with_a_constant, "uses CONSTANT, which is defined outside of it"),
        (functions.with_an_import, "uses Path, which is defined outside of it"),
        (functions.decorated, "decorated is no plain function"),
        (functions.quietly_decorated, "has a decorator, which stays here"),
        (functions.asynchronous, "asynchronous is no plain function"),
        (functions.a_generator, "has a `yield`, so that nothing of it would run"),
        (print, "print is no plain function"),
        (eval("lambda: 1"), "A lambda cannot be shipped"),
    ],
)
def test_what_does_not_stand_alone_is_refused_in_one_sentence(function: Any, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        of_function(function)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_function_without_source_is_refused() -> None:
    there: dict[str, Any] = {}
    exec("def typed_in(): return 1", there)
    with pytest.raises(UsageError, match=r"The source of typed_in is not known here"):
        of_function(there["typed_in"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"lr": object()}, "The argument lr of alone cannot be shipped, since it is no JSON"),
        ({"lr": {1: 2}}, "The argument lr of alone cannot be shipped"),
        ({}, "cannot be called with these arguments: missing a required argument: 'lr'"),
        ({"lr": 1, "epochs": 2}, "cannot be called with these arguments: got an unexpected keyword argument"),
        ([1], "A function takes its arguments by name"),
    ],
)
def test_arguments_that_cannot_be_given_are_refused(arguments: Any, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        of_function(functions.alone, arguments)
    assert says in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON)
def test_any_json_arrives_as_it_was(value: Any) -> None:
    program = of_function(functions.annotated, {"path": value})
    assert program.source is not None
    there: dict[str, Any] = {"__name__": "shipped"}
    exec(
        program.source.replace('__name__ == "__main__"', "True").replace("import dlr as _dlr", ""),
        there
        | {
            "_dlr": type(
                "Nothing", (), {"report_result": staticmethod(lambda result: there.update(result=result))}
            )
        },
    )
    assert there["result"] == value


def test_scripts_that_cannot_be_shipped_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "large.py").write_bytes(b"#" * 2_000_000)
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    said = {}
    for name in ("folder.py", "large.py", "binary.py", "absent.py"):
        with pytest.raises(UsageError) as refused:
            of_script(tmp_path / name)
        said[name] = str(refused.value)
    assert "is a directory, and one file is shipped" in said["folder.py"]
    assert "has 2.0 MB, and a ConfigMap holds 1 MiB" in said["large.py"]
    assert "--in-image" in said["large.py"]
    assert "is not UTF-8 text" in said["binary.py"]
    assert "No such file" in said["absent.py"]
    assert all("\n" not in each for each in said.values())


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import torch\nimport bad_mod\n", "imports bad_mod, and bad_mod.py beside it is not shipped"),
        ("from bad_mod import f as g\n", "imports bad_mod, and bad_mod.py beside it"),
        ("def main():\n    import tools.inner\n", "imports tools, and tools beside it"),
        ("try:\n    from plain.part import x\nexcept ImportError: ...\n", "imports plain, and plain beside"),
        ("from plain import part\n", "imports plain, and plain beside"),
        ("from . import bad_mod\n", "imports .bad_mod, and bad_mod.py beside it"),
        ("from .tools import x\n", "imports .tools, and tools beside it"),
        ("from ..above import x\n", "imports ..above, and above.py beside it"),
    ],
)
def test_a_module_beside_the_script_is_not_shipped_and_said_so_before_the_job_is_made(
    tmp_path: Path, source: str, says: str
) -> None:
    script = beside(tmp_path, source)
    with pytest.raises(UsageError) as refused:
        of_script(script)
    assert says in str(refused.value) and "--in-image" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "import json, sys, pytest\n",  # they are installed, whatever lies beside it
        "import plain, elsewhere\n",  # a folder of data, and a module that nobody has here
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import bad_mod\n",
        "no Python at all",
    ],
)
def test_what_an_image_may_have_or_nobody_runs_is_no_reason_to_refuse(tmp_path: Path, source: str) -> None:
    script = beside(tmp_path, source)
    assert program_of(script, ["--lr", "0.1"]) == Program(f"{FOLDER}/train.py", ("--lr", "0.1"), source)


def beside(folder: Path, source: str) -> Path:
    """A script in a folder with modules."""
    own = folder / "own"
    for name in ("bad_mod.py", "json.py", "pytest.py", "tools/__init__.py", "plain/part.py", "../above.py"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).touch()
    script = own / "train.py"
    script.write_text(source)
    return script


def test_a_function_is_refused_for_a_module_beside_its_file_as_a_script_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_of_one.py").write_text("x = 1\n")
    file = tmp_path / "has_one.py"
    file.write_text("def train():\n    import helper_of_one\n    return helper_of_one.x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    train = importlib.import_module("has_one").train
    with pytest.raises(UsageError, match=r"^The function train imports helper_of_one, and helper_of_one.py "):
        of_function(train)
