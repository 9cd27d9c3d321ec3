"""`python -m release`: writes the artefacts of a release to dist/, with their SHA-256 sums.

Each artefact is byte-identical for the same commit, Python and tool versions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from crds.release import DISTRIBUTION, VERSION
from dlr.bundle import agent as agent_bundle
from reconcilers.observed.options import DEFAULT_AGENT_PATH
from release import chart
from release.archive import File, files_below, write_gzipped_tar
from release.images import Image, Layout, LayoutError, build
from release.sbom import sbom

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "kind" / "requirements"
PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
"""uv's names of the platforms, by the architecture of an image."""
PACKAGES = "opt/dlr"
"""Folder of the images' packages."""


@dataclass(frozen=True)
class Release:
    """Common settings of the artefacts of one run."""

    out: Path
    time: int
    """Seconds since the epoch: the time of the commit."""

    @property
    def created(self) -> str:
        return datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def run(self, *command: str | Path, **variables: str) -> None:
        """Run a command whose output is byte-identical for the same time."""
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(self.time), **variables}
        subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=sys.stderr)

    def packages(self) -> Path:
        """Build the sdist, and the wheel from it; return the wheel."""
        build: tuple[str | Path, ...] = (
            *("uv", "build", "--quiet", "--out-dir", self.out),
            *("--require-hashes", "--build-constraints", REQUIREMENTS / "build.txt"),
        )
        self.run(*build, "--sdist")
        name = f"{DISTRIBUTION.replace('-', '_')}-{VERSION}"
        sdist = self.out / f"{name}.tar.gz"
        with tempfile.TemporaryDirectory() as scratch:
            with tarfile.open(sdist) as tar:
                tar.extractall(scratch, filter="data")
            write_gzipped_tar(sdist, files_below(Path(scratch) / name, name), self.time)
        self.run(*build, "--wheel", sdist)
        (wheel,) = self.out.glob(f"{name}-*.whl")
        return wheel

    def chart(self) -> None:
        """Write the chart as `helm package` does."""
        files = {f"{chart.NAME}/{path}": File(text.encode()) for path, text in chart.files().items()}
        write_gzipped_tar(self.out / f"{chart.NAME}-{VERSION}.tgz", files, self.time)

    def image(self, name: str, base: Path, wheel: Path, architecture: str) -> None:
        """Build an image on its base, and the list of its packages."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            if name == "agent":
                image, packages = self._agent(folder)
            else:
                version = Layout(base).variables(architecture).get("PYTHON_VERSION")
                if version is None:
                    raise LayoutError(f"{base} is not a Python image: it does not set PYTHON_VERSION.")
                image = self._python(name, folder, wheel, architecture, version)
                packages = list(metadata.distributions(path=[str(folder)]))
            document = sbom(image.name, VERSION, self.created, packages)
            stem = f"{image.name}-{VERSION}-{architecture}"
            (self.out / f"{stem}.cdx.json").write_text(json.dumps(document, indent=2) + "\n")
            archive = self.out / f"{stem}.oci.tar"
            digest = build(image, Layout(base), VERSION, architecture, self.time, archive)
        print(f"{image.name}:{VERSION} {architecture} {digest}")

    def _agent(self, folder: Path) -> tuple[Image, list[metadata.Distribution]]:
        """Return the agent's image and its packages, as kind/agent.Dockerfile builds it."""
        pinned, bundle = folder / "packages", folder / "bundle"
        self.run(
            *("uv", "pip", "install", "--quiet", "--no-config", "--target", pinned),
            *("--python", sys.executable, "--require-hashes", "--only-binary=:all:"),
            *("-r", REQUIREMENTS / "controller.txt"),
        )
        script = "import sys, pathlib, dlr.bundle.agent as agent; agent.build(pathlib.Path(sys.argv[1]))"
        self.run(sys.executable, "-c", script, bundle, PYTHONPATH=str(pinned))
        vendored = set(agent_bundle.VENDORED.values())
        found = [each for each in metadata.distributions(path=[str(pinned)]) if each.name in vendored]
        image = Image("dlr-agent", files_below(bundle, DEFAULT_AGENT_PATH.removeprefix("/")))
        return image, [metadata.distribution(DISTRIBUTION), *found]

    def _python(self, name: str, folder: Path, wheel: Path, architecture: str, version: str) -> Image:
        """Return an image on a Python base, as kind/controller.Dockerfile and kind/worker.Dockerfile build
        it.

        Args:
            version: version of Python in the base.
        """
        install: tuple[str | Path, ...] = (
            *("uv", "pip", "install", "--quiet", "--no-config", "--target", folder),
            *(f"--python-version={version}", f"--python-platform={PLATFORMS[architecture]}"),
        )
        pins = REQUIREMENTS / f"{'torch' if name == 'worker' else name}.txt"
        self.run(*install, "--require-hashes", "--only-binary=:all:", "-r", pins)
        env = {"PYTHONPATH": f"/{PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1"}
        if name == "worker":
            # torch needs the user's name and home.
            env |= {"USER": "worker", "HOME": "/tmp"}
            return Image("dlr-worker", self._installed(folder), env=env, folder="/tmp")
        self.run(*install, "--no-deps", "--no-index", wheel)
        script = (ROOT / "bin" / "dlr").read_text().partition("\n")[2]
        command = File(f"#!/usr/bin/env python3\n{script}".encode(), executable=True)
        files = self._installed(folder) | {"usr/local/bin/dlr": command}
        return Image("dlr-controller", files, ("dlr", "controller"), env={**env, "PYTHONUNBUFFERED": "1"})

    @staticmethod
    def _installed(folder: Path) -> dict[str, File]:
        """Return the files of packages, without scripts and records with paths of this machine."""
        shutil.rmtree(folder / "bin", ignore_errors=True)
        for record in (".lock", "*.dist-info/direct_url.json", "*.dist-info/RECORD", "*.dist-info/uv_*"):
            for path in folder.glob(record):
                path.unlink()
        return files_below(folder, PACKAGES)

    def sums(self) -> None:
        """Write the SHA-256 sums of all files."""
        lines = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in sorted(self.out.iterdir())
            if path.name != "SHA256SUMS" and not path.name.startswith(".")
        ]
        (self.out / "SHA256SUMS").write_text("".join(lines))


def commit_time() -> int:
    """Return SOURCE_DATE_EPOCH, or the time of the commit."""
    if named := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(named)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the artefacts")
    parser.add_argument(
        "--python-base",
        type=Path,
        help="OCI layout of a python image, for controller and worker",
    )
    parser.add_argument("--busybox-base", type=Path, help="OCI layout of busybox, for the agent")
    parser.add_argument(
        "--without-worker", action="store_true", help="do not build the worker's image, 3 GB with CUDA"
    )
    parser.add_argument("--architecture", choices=PLATFORMS, default="amd64")
    given = parser.parse_args(arguments)
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    release = Release(given.out.resolve(), commit_time())
    try:
        wheel = release.packages()
        release.chart()
        bases = {"controller": given.python_base, "agent": given.busybox_base}
        if not given.without_worker:
            bases["worker"] = given.python_base
        for name, base in bases.items():
            if base is None:
                print(
                    f"dlr-{name} is not built: give the folder of its base image (docs/install.md).",
                    file=sys.stderr,
                )
            else:
                release.image(name, base, wheel, given.architecture)
    except LayoutError as error:
        sys.exit(f"release: {error}")
    except FileNotFoundError as error:
        sys.exit(
            f"release: there is no {error.filename}; `pip install uv` brings uv, which builds the packages."
        )
    except subprocess.CalledProcessError as error:
        sys.exit(f"release: {' '.join(map(str, error.cmd[:3]))} failed; see its output above.")
    release.sums()
    print((release.out / "SHA256SUMS").read_text(), end="")


if __name__ == "__main__":
    main()
