"""Variables that a script sets before it imports torch, and that would come too late under warm start.

torch and its libraries read much of their environment while they are imported, and a forked process has torch
imported before its script begins. So scripts that set such a variable are detected by their source, and their
processes are started as new interpreters, in which the variable takes effect. A mere warning would change
what is trained; importing torch with a guessed value would be wrong for any computed value.

Only the script is read, not its imports: see docs/from-torchrun.md for those.
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
"""Prefixes of the variables that importing torch reads: with torch 2.6 (CUDA) and 2.13 (CPU), by records of
getenv(3) and `os.environ`; KMP_ is for Intel's OpenMP, which other builds use."""

READ_LATER = (
    "TORCHELASTIC_",
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_FR_",
    "TORCH_GLOO_",
    "TORCH_HOME",
    "TORCH_NCCL_",
)
"""Prefixes among these whose variables are read only when they are needed."""


def must_start_cold(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a command sets variables that importing torch reads, and log these with advice.

    Args:
        argv: the command, from the interpreter on.
        env: environment of its processes.
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

    All code above the first `import torch` counts, including functions. Without such an import all code
    counts, since another library may import torch at any time. Setting a variable to the value that it has in
    the environment is not a change.

    Returns:
        The line number, by the variable's name. Empty if the text is not Python source.
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
    """Yield the variables that one node of the syntax tree sets, with values; None for computed ones."""
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs = [(name, value) for name in _names_in_environ(targets)]
        case ast.AnnAssign(target=ast.Subscript() as target, value=ast.expr() as value):
            pairs = [(name, value) for name in _names_in_environ([target])]
        case ast.AugAssign(target=ast.Subscript() as target):  # its value is computed
            pairs = [(name, target) for name in _names_in_environ([target])]
        case ast.AugAssign(target=of, value=ast.Dict(keys=keys, values=values)) if _is_environ(of):
            pairs = [*zip(keys, values, strict=True)]
        case ast.Call(func=ast.Attribute(attr="putenv"), args=[name, value]):
            pairs = [(name, value)]
        case ast.Call(func=ast.Attribute(value=of, attr="setdefault"), args=[name, value]) if _is_environ(of):
            pairs = [(name, value)] if _constant(name) not in env else []
        case ast.Call(func=ast.Attribute(value=of, attr="update")) if _is_environ(of):
            dicts = (each for each in node.args if isinstance(each, ast.Dict))
            pairs = [pair for each in dicts for pair in zip(each.keys, each.values, strict=True)]
            yield from ((word.arg, _constant(word.value)) for word in node.keywords if word.arg)
    yield from ((text, _constant(value)) for key, value in pairs if (text := _constant(key)))


def _names_in_environ(targets: Sequence[ast.expr]) -> list[ast.expr]:
    """Return the names of the environment variables among the targets of an assignment."""
    return [each.slice for each in targets if isinstance(each, ast.Subscript) and _is_environ(each.value)]


def _constant(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_environ(node: ast.expr) -> bool:
    """Whether a node is `os.environ`, or `environ` imported from there."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name == "environ"


def _sources(argv: Sequence[str]) -> list[Path]:
    """List the files that a command runs before its imports: the script, or the module and its packages."""
    if not runs_python(argv):
        return []
    if argv[2] != MODULE:
        return [Path(argv[2])]
    return list(_files_of_module(argv[3]))


def _files_of_module(name: str) -> Iterator[Path]:
    """Yield the files that `python -m NAME` runs: each package's `__init__.py`, then the module."""
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
