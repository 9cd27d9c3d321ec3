"""Writes kind/requirements/: what pip installs into the images, each package in one version, by SHA-256.

    python kind/requirements.py
    python kind/requirements.py --torch-index URL      torch of another index, such as PyTorch's for the CPU

Versions are those of the packages beside this Python, with which the tests ran. Packages that torch needs for
CUDA are not there, and have the versions in torch's metadata. `uv` takes the sums of all platforms' files
from the index.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from crds.release import DISTRIBUTION

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).with_suffix("")
PYTHON = "3.13"
"""Minor version of the images' Python."""

_HEADER = "# Made by kind/requirements.py. pip installs these files and no others.\n"


def wanted() -> dict[str, list[str]]:
    """Requirements by file, without what these require in turn.

    `build` is what pip builds dlr with.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    extras = project["optional-dependencies"]
    return {
        "build": settings["build-system"]["requires"],
        "controller": [*project["dependencies"], *extras["controller"], *extras["otel"]],
        "torch": extras["torch"],
        "examples": extras["examples"],
    }


def compiled(requirements: Sequence[str], versions: Path, options: Sequence[str]) -> str:
    """A requirements file of these and of all that they require, with hashes.

    Raises:
        CalledProcessError: uv has found no versions; it has said why on standard error.
        FileNotFoundError: uv is not installed.
    """
    command = ["uv", "pip", "compile", "-", "--universal", f"--python-version={PYTHON}", "--quiet"]
    command += ["--generate-hashes", f"--constraint={versions}", "--no-annotate", "--no-header", *options]
    done = subprocess.run(
        command, input="\n".join(requirements), stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes kind/requirements/.")
    parser.add_argument("--torch-index", help="index that has torch, beside PyPI")
    index = parser.parse_args().torch_index
    of_index = [f"--index={index}", "--index-strategy=unsafe-best-match", "--emit-index-url"] if index else []
    with tempfile.TemporaryDirectory() as scratch:
        versions = Path(scratch) / "versions.txt"
        versions.write_text(
            "".join(
                f"{each.name}=={Version(each.version).public}\n"
                for each in metadata.distributions()
                if each.name != DISTRIBUTION
            )
        )
        for name, requirements in wanted().items():
            try:
                text = compiled(requirements, versions, of_index if name == "torch" else ())
            except FileNotFoundError:
                sys.exit("kind/requirements.py: uv is not installed; `pip install uv` brings it.")
            except subprocess.CalledProcessError:
                sys.exit(f"kind/requirements.py: uv has no versions for kind/requirements/{name}.txt.")
            (FOLDER / f"{name}.txt").write_text(_HEADER + text)


if __name__ == "__main__":
    main()
