"""What goes into the images is fixed byte by byte: packages and base images by SHA-256."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import deploy

KIND = Path(deploy.__file__).parent.parent / "kind"
SCRIPT = runpy.run_path(str(KIND / "requirements.py"))
DOCKERFILES = sorted(KIND.glob("*.Dockerfile"))
ARCHITECTURES = ("x86_64", "aarch64")
OF_CUDA = re.compile(r"cuda-[a-z]+|nvidia-[a-z0-9-]+|triton")


@dataclass(frozen=True)
class Pin:
    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        assert specifier.operator == "==", self.requirement
        return specifier.version


def target(architecture: str) -> dict[str, str]:
    return {
        "python_version": SCRIPT["PYTHON"],
        "python_full_version": f"{SCRIPT['PYTHON']}.0",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": architecture,
    }


def pins(name: str, architecture: str) -> dict[str, Pin]:
    """Read the pins of a file that pip installs on Linux, by package."""
    found = {}
    text = (KIND / "requirements" / f"{name}.txt").read_text().replace("\\\n", "")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+--hash=", line.strip())
        pin = Pin(Requirement(requirement), tuple(hashes))
        if pin.requirement.marker is None or pin.requirement.marker.evaluate(target(architecture)):
            found[canonicalize_name(pin.requirement.name)] = pin
    return found


def needed(requirements: list[str], architecture: str) -> Iterator[Requirement]:
    """Yield requirements and all that these require, by the metadata of the packages installed here."""
    waiting = [Requirement(each) for each in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        yield requirement
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        for text in metadata.requires(requirement.name) or ():
            each = Requirement(text)
            extras = ("", *requirement.extras)
            if each.marker is None or any(
                each.marker.evaluate(target(architecture) | {"extra": extra}) for extra in extras
            ):
                waiting.append(each)


@pytest.mark.parametrize("name", SCRIPT["wanted"]())
def test_every_package_is_fixed_by_the_sums_of_its_files(name: str) -> None:
    for architecture in ARCHITECTURES:
        for pin in pins(name, architecture).values():
            assert re.fullmatch(r"[0-9][0-9a-z.+]*", pin.version)
            assert pin.hashes, f"{pin.requirement} has no hash"
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in pin.hashes), pin


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", SCRIPT["wanted"]())
def test_a_file_has_what_the_project_requires_and_no_more(name: str, architecture: str) -> None:
    """In versions that all who require a package take. CUDA's packages only a torch for CUDA requires."""
    fixed = pins(name, architecture)
    required = list(needed(SCRIPT["wanted"]()[name], architecture))
    more = set(fixed) - {canonicalize_name(each.name) for each in required}
    assert not {each for each in more if name != "torch" or not OF_CUDA.fullmatch(each)}
    for each in required:
        pin = fixed[canonicalize_name(each.name)]
        assert each.specifier.contains(pin.version, prereleases=True), (each, pin.version)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_pip_installs_by_hash_and_fetches_nothing_to_build_with(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    wheels_alone = "ENV PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all:" in text
    commands = re.findall(r"\S*pip (?:install|wheel|download) [^&\n]*", text)
    assert commands
    for command in commands:
        words = command.split()
        if "--no-index" in words:  # dlr itself
            assert {"--no-deps"} < {*words} and ("--no-build-isolation" in words or ".whl" in command)
            continue
        assert {"--require-hashes", "-r"} < {*words}, command
        assert wheels_alone or "--only-binary :all:" in command, command
        file = Path(words[words.index("-r") + 1])
        assert (KIND / file.relative_to("/")).is_file()
        assert len(words) == words.index("-r") + 2, "no package beside those of the file"


def test_base_images_are_fixed_by_their_digests() -> None:
    bases = set()
    for path in DOCKERFILES:
        text = path.read_text()
        defaults = dict(re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE))
        for variable in re.findall(r"^FROM \$\{(\w+)\}", text, re.MULTILINE):
            if variable == "WORKER_IMAGE":  # built here
                continue
            assert re.fullmatch(r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}", defaults[variable]), path
            bases.add(defaults[variable])
        assert len(re.findall("^FROM ", text, re.MULTILINE)) == len(
            re.findall(r"^FROM \$\{", text, re.MULTILINE)
        )
    python, busybox = sorted(bases, reverse=True)
    assert busybox.startswith("busybox:")
    assert re.match(rf"python:{re.escape(SCRIPT['PYTHON'])}\.[0-9]+-slim-[a-z]+@", python)
