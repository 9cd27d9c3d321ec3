"""A Python as a stock training image has it: torch with what it needs, and nothing of ours."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from collections.abc import Collection, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

NEVER_THERE = ("dlr", "agent", "controller", "crds", "healthcheck", "urllib3", "tenacity", "pynvml")
"""Modules of the agent, and those that it imports beside torch."""

_CONSOLE_SCRIPT = """\
#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""
_IMPORT_SECONDS = 300.0


class BareVenv:
    """A virtual environment with links to this interpreter's torch: made in a moment, and takes no room.

    Args:
        folder: where to; it is made.
        extras: further distributions that it gets, with what they need.
    """

    def __init__(self, folder: Path, extras: Collection[str] = ()) -> None:
        self.folder = folder
        venv.EnvBuilder(symlinks=True).create(folder)
        (site_packages,) = (folder / "lib").glob("python*/site-packages")
        needed = frozenset[str]()
        for name in ("torch", *extras):
            needed = _needed(name, needed)
        for name in sorted(needed):
            for file in _top_level(name):
                if not (site_packages / file.name).is_symlink():  # some share a folder, such as `nvidia`
                    (site_packages / file.name).symlink_to(file)
        for script in metadata.distribution("torch").entry_points.select(group="console_scripts"):
            module, _, function = script.value.partition(":")
            path = self.program(script.name)
            path.write_text(
                _CONSOLE_SCRIPT.format(python=self.program("python3"), module=module, function=function)
            )
            path.chmod(0o755)

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    @property
    def path(self) -> str:
        """PATH as such an image sets it."""
        return f"{self.folder / 'bin'}:{os.defpath}"

    def importable(self, names: Collection[str]) -> list[str]:
        """Return the modules that it finds."""
        source = (
            "import sys; from importlib.util import find_spec\n"
            "print(*[name for name in sys.argv[1:] if find_spec(name)])"
        )
        return self._run(source, *names).split()

    def _run(self, source: str, *arguments: str) -> str:
        done = subprocess.run(
            [self.program("python3"), "-c", source, *arguments],
            env={"PATH": self.path},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_IMPORT_SECONDS,
            check=True,
        )
        return done.stdout


def _needed(distribution: str, known: frozenset[str]) -> frozenset[str]:
    """The known distributions, this one and all that it requires, by their names."""
    if distribution in known:
        return known
    known |= {distribution}
    for text in metadata.requires(distribution) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            known = _needed(re.sub(r"[-_.]+", "-", requirement.name).lower(), known)
    return known


def _top_level(distribution: str) -> Iterator[Path]:
    """Its files and folders in site-packages."""
    found = metadata.distribution(distribution)
    names = {file.parts[0] for file in found.files or ()} - {".."}
    return (Path(str(found.locate_file(name))) for name in sorted(names - {"__pycache__"}))
