"""Lays the wheel out: everything but `dlr` itself goes below `dlr._internal` (see dlr/bundle/)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # the build runs without the project being installed

from dlr.bundle.relocate import INTERNAL, PARTS, module_name, relocated  # noqa: E402

SCRIPTS = ["bin/dlr", "bin/kubectl-dlr"]
"""What is installed as commands; kubectl runs the second as `kubectl dlr`."""

SHIPPED = {".py", ".yaml", ".json", ".typed", ".html", ".js", ".css", ".svg", ".txt"}
"""The endings of our modules, of the files that they read at run time, and of `py.typed`."""


class BuildRelocated(build_py):
    """Writes the files of the wheel. An editable install has the folders of the repository instead."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        build_folder = Path(self.build_lib)
        shutil.rmtree(build_folder, ignore_errors=True)
        for place, content in wheel_files(ROOT).items():
            (build_folder / place).parent.mkdir(parents=True, exist_ok=True)
            (build_folder / place).write_bytes(content)


def wheel_files(root: Path) -> dict[str, bytes]:
    """The content of each file of the wheel's packages, by its path.

    Args:
        root: the folder of the repository.

    Raises:
        RelocationError: a module imports one of ours in a way that cannot be rewritten.
        OSError: a file cannot be read.
    """
    found = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for part in (*sorted(PARTS), "dlr")
        for path in sorted((root / part).rglob("*"))
        if path.suffix in SHIPPED
    }
    modules = {module_name(path) for path in found if path.endswith(".py")}
    inner = INTERNAL.replace(".", "/")
    placed = {f"{inner}/__init__.py": b""}
    for path, content in found.items():
        place = path if path.startswith("dlr/") else f"{inner}/{path}"
        is_module = path.endswith(".py")
        placed[place] = relocated(content.decode(), PARTS, modules, path).encode() if is_module else content
    return placed


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildRelocated}, scripts=SCRIPTS)
