"""Prints the versions of all packages in the images: those that this Python has, and so the tests.

    python kind/constraints.py > kind/constraints.txt

It follows the requirements of what the images install, as they hold on their Python and Linux. torch itself
is left out, since the Dockerfiles have its version as an argument; for CUDA it requires NVIDIA's packages as
well, in versions that its own metadata fixes.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INSTALLED = ("dlr[controller,cli,timeline,examples]", "torch", "setuptools")
"""By the Dockerfiles here; setuptools is what pip builds dlr with."""
PYTHON = "3.13"
"""Of the images."""
_LEFT_OUT = ("dlr", "torch")

HEADER = """\
# Made by kind/constraints.py from the packages that the tests ran with; the images take these versions.
"""


def constraints() -> dict[str, str]:
    """Version by name. Raises PackageNotFoundError if a package that the images need is not installed."""
    found: dict[str, str] = {}
    waiting = [Requirement(each) for each in INSTALLED]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        if name not in _LEFT_OUT:
            found[name] = metadata.version(name)
        waiting += _requirements(name, requirement.extras)
    return dict(sorted(found.items()))


def _requirements(name: str, extras: set[str]) -> Iterator[Requirement]:
    target = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0", "sys_platform": "linux"}
    target |= {"platform_system": "Linux", "platform_machine": platform.machine()}
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate(target | {"extra": extra}) for extra in ("", *extras)):
            yield requirement


def main() -> None:
    sys.stdout.write(HEADER + "".join(f"{name}=={version}\n" for name, version in constraints().items()))


if __name__ == "__main__":
    main()
