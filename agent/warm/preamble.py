"""Variables that a script sets for torch before it imports torch: under warm start they would come too late.

torch, and the libraries that come with it, read much of their environment while they are imported. A process
that is forked has torch imported before its script begins. So a script that sets such a variable at its top
is found by its source, and its processes are started as new interpreters, in which the variable has its
effect. To warn and go on would change what is trained; to guess the value and import torch anew with it would
be wrong for any value that is computed.

Only the script is read, not what it imports: docs/from-torchrun.md says what to do then.
"""

from __future__ import annotations

import ast
import logging
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agent.warm.script import MODULE, runs_python

logger = logging.getLogger(__name__)

READ_AT_IMPORT = (
    "ACC_",
    "AOT_INDUCTOR_",
    "AOTINDUCTOR_",
    "ATEN_",
    "CUBLASLT_",
    "CUBLAS_LOG",
    "DNNL_",
    "GOMP_",
    "GOTO_NUM_THREADS",
    "INDUCTOR_",
    "KINETO_",
    "KMP_",
    "LOGLEVEL",
    "MKL_",
    "MKLDNN_",
    "NPY_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCH",
    "TRITON_INTERPRET",
)
"""How the names of variables begin that importing torch reads. Seen with torch 2.6 (CUDA) and 2.13 (CPU), by
recording getenv(3) and `os.environ`; KMP_ is for Intel's OpenMP, which other builds use."""

READ_LATER = (
    "TORCHELASTIC_",
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_FR_",
    "TORCH_GLOO_",
    "TORCH_HOME",
    "TORCH_NCCL_",
)
"""Those of them that are read when they are needed."""


def must_start_cold(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Tell whether a command sets variables that importing torch reads, and log which, and what to do.

    Args:
        argv: the command, from the interpreter on.
        env: what its processes have in their environment.
    """
    for file in _sources(argv):
        variables = variables_for_torch(_text(file), env)
        if variables:
            named = ", ".join(f"{name} (line {line})" for name, line in variables.items())
            logger.warning(
                "%s sets %s above any `import torch` of its own, where torch may still have to read it, so "
                "its processes are started as new interpreters: each restart takes seconds longer than with "
                "a warm start. Set it in the Pod's env instead",
                file,
                named,
            )
            return True
    return False


def variables_for_torch(source: str, env: Mapping[str, str]) -> dict[str, int]:
    """Find the variables that a script changes before it imports torch, and that importing torch reads.

    What is above the first `import torch` counts, in functions too; without such an import, everything does:
    whether another library that the script imports has imported torch by then is not known.
    A variable that the environment has already, with the same value, is not changed.

    Returns:
        The number of the line, by the variable's name. Empty for what is no Python source.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    imported_at = min((_line(node) for node in nodes if _imports_torch(node)), default=sys.maxsize)
    found: dict[str, int] = {}
    for node in nodes:
        line = _line(node)
        if line >= imported_at:
            continue
        for name, value in _changes(node, env):
            if _is_read_at_import(name) and (value is None or env.get(name) != value):
                found.setdefault(name, line)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _is_read_at_import(name: str) -> bool:
    return name.startswith(READ_AT_IMPORT) and not name.startswith(READ_LATER)


def _imports_torch(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == "torch" for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch"


def _changes(node: ast.AST, env: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Variables that one node of the syntax tree sets, with their values; None for one that is computed."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _items(target, node.value)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        if _is_environ(node.target) and isinstance(node.value, ast.Dict):
            yield from _of_dict(node.value)
        yield from _items(node.target, None)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _of_call(node.func, node, env)


def _items(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, str | None]]:
    """`os.environ[NAME] = value`."""
    if isinstance(target, ast.Subscript) and _is_environ(target.value):
        yield from _named(target.slice, value)


def _of_call(
    function: ast.Attribute, call: ast.Call, env: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """`os.environ.setdefault(…)`, `os.environ.update(…)`, `os.putenv(…)`."""
    if function.attr == "putenv" and call.args:
        yield from _named(call.args[0], None)
    if not _is_environ(function.value):
        return
    if function.attr == "setdefault" and call.args:
        yield from ((name, None) for name, _ in _named(call.args[0], None) if name not in env)
    if function.attr == "update":
        for argument in call.args:
            if isinstance(argument, ast.Dict):
                yield from _of_dict(argument)
        yield from ((word.arg, _constant(word.value)) for word in call.keywords if word.arg)


def _of_dict(node: ast.Dict) -> Iterator[tuple[str, str | None]]:
    for key, value in zip(node.keys, node.values, strict=True):
        if key is not None:
            yield from _named(key, value)


def _named(key: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, str | None]]:
    name = _constant(key)
    if name is not None:
        yield name, _constant(value)


def _constant(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_environ(node: ast.expr) -> bool:
    """`os.environ`, or `environ` that was imported from there."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name == "environ"


def _sources(argv: Sequence[str]) -> list[Path]:
    """The files that a command runs before anything that it imports: the script, or the module's packages."""
    if not runs_python(argv):
        return []
    if argv[2] != MODULE:
        return [Path(argv[2])]
    return list(_files_of_module(argv[3]))


def _files_of_module(name: str) -> Iterator[Path]:
    """What `python -m NAME` runs, without running it: each package's `__init__.py`, then the module."""
    folders = [Path.cwd(), *map(Path, sys.path)]
    for word in [*name.split("."), "__main__"]:
        packages = [folder / word for folder in folders if (folder / word).is_dir()]
        for folder in folders:
            if (folder / word / "__init__.py").is_file():
                yield folder / word / "__init__.py"
                packages = [folder / word]
                break
            if (folder / f"{word}.py").is_file():
                yield folder / f"{word}.py"
                return
        folders = packages  # several for a package without __init__.py


def _text(file: Path) -> str:
    try:
        with tokenize.open(file) as source:
            return source.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""
