"""Images built without a container runtime: layers on top of a base image, from one OCI layout to another.

https://github.com/opencontainers/image-spec. `skopeo copy docker://IMAGE oci:FOLDER` fetches a base from a
registry; `skopeo copy oci-archive:FILE docker://IMAGE` pushes the result.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from release.archive import File, files_below, write_tar

JSON = dict[str, Any]

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class LayoutError(Exception):
    """A folder is not an OCI layout with an image for the platform; the message has the reason."""


@dataclass(frozen=True)
class Layout:
    """A folder in the OCI image layout."""

    folder: Path

    def manifest(self, architecture: str) -> tuple[str, JSON]:
        """Return digest and manifest of the image for Linux on this architecture."""
        try:
            waiting = json.loads((self.folder / "index.json").read_text())["manifests"]
        except (OSError, ValueError, KeyError) as error:
            raise LayoutError(
                f"{self.folder} is not an OCI layout ({error}); create one: "
                f"skopeo copy docker://IMAGE oci:{self.folder}"
            ) from error
        while waiting:
            descriptor = waiting.pop(0)
            if descriptor["mediaType"] == INDEX:
                waiting += json.loads(self.blob(descriptor["digest"]).read_bytes())["manifests"]
            elif descriptor["mediaType"] == MANIFEST:
                manifest = json.loads(self.blob(descriptor["digest"]).read_bytes())
                config = json.loads(self.blob(manifest["config"]["digest"]).read_bytes())
                if (config.get("os"), config.get("architecture")) == ("linux", architecture):
                    return descriptor["digest"], manifest
        raise LayoutError(f"{self.folder} has no image for linux/{architecture}.")

    def variables(self, architecture: str) -> dict[str, str]:
        """Return the environment variables that the image sets."""
        _, manifest = self.manifest(architecture)
        config = json.loads(self.blob(manifest["config"]["digest"]).read_bytes())
        return dict(each.split("=", 1) for each in (config.get("config") or {}).get("Env") or ())

    def blob(self, digest: str) -> Path:
        """Return the file of a blob, after checking its digest."""
        algorithm, _, value = digest.partition(":")
        path = self.folder / "blobs" / algorithm / value
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, algorithm).hexdigest()
        except FileNotFoundError as error:
            raise LayoutError(f"{self.folder} lacks the blob {digest}; copy the image again.") from error
        if found != value:
            raise LayoutError(f"{path} is damaged: its digest is {algorithm}:{found}; copy the image again.")
        return path

    def add(self, content: bytes) -> tuple[str, int]:
        """Write a blob; return its digest and size."""
        value = hashlib.sha256(content).hexdigest()
        path = self.folder / "blobs/sha256" / value
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"sha256:{value}", len(content)


@dataclass(frozen=True)
class Image:
    """Content and settings of an image on top of its base."""

    name: str
    files: Mapping[str, File]
    entrypoint: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "65532:65532"


def build(image: Image, base: Layout, tag: str, architecture: str, time: int, archive: Path) -> str:
    """Write the image to an OCI archive; return the digest of its manifest.

    Raises:
        LayoutError: the base has no image for the architecture, or is damaged.
        OSError: the archive cannot be written.
    """
    base_digest, manifest = base.manifest(architecture)
    created = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        made = Layout(Path(scratch) / "layout")
        blobs = made.folder / "blobs/sha256"
        blobs.mkdir(parents=True)
        for layer in manifest["layers"]:
            shutil.copy(base.blob(layer["digest"]), blobs)
        layer, diff_id = _layer(made, image.files, time)
        config = json.loads(base.blob(manifest["config"]["digest"]).read_bytes())
        digest, size = made.add(_encoded(_config(config, image, diff_id, created)))
        written = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": digest, "size": size},
            "layers": [*manifest["layers"], layer],
            "annotations": {
                "org.opencontainers.image.title": image.name,
                "org.opencontainers.image.version": tag,
                "org.opencontainers.image.created": created,
                "org.opencontainers.image.base.digest": base_digest,
            },
        }
        digest, size = made.add(_encoded(written))
        descriptor = {
            "mediaType": MANIFEST,
            "digest": digest,
            "size": size,
            "platform": {"os": "linux", "architecture": architecture},
            "annotations": {"org.opencontainers.image.ref.name": f"{image.name}:{tag}"},
        }
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
        (made.folder / "index.json").write_bytes(_encoded(index))
        (made.folder / "oci-layout").write_bytes(_encoded({"imageLayoutVersion": "1.0.0"}))
        with archive.open("wb") as out:
            names = files_below(made.folder, ".")
            write_tar(out, {name.removeprefix("./"): file for name, file in names.items()}, time)
    return digest


def _layer(layout: Layout, files: Mapping[str, File], time: int) -> tuple[JSON, str]:
    """Write a layer; return its descriptor, and its digest before compression."""
    plain, packed = layout.folder / "layer.tar", layout.folder / "layer.tar.gz"
    with plain.open("wb") as out:
        write_tar(out, files, time)
    with plain.open("rb") as tar:
        diff_id = hashlib.file_digest(tar, "sha256").hexdigest()
        tar.seek(0)
        with packed.open("wb") as out, gzip.GzipFile("", "wb", 6, out, mtime=0) as zipped:
            shutil.copyfileobj(tar, zipped)
    plain.unlink()
    with packed.open("rb") as zipped_tar:
        digest = hashlib.file_digest(zipped_tar, "sha256").hexdigest()
    size = packed.stat().st_size
    packed.replace(layout.folder / "blobs/sha256" / digest)
    return {"mediaType": LAYER, "digest": f"sha256:{digest}", "size": size}, f"sha256:{diff_id}"


def _config(base: JSON, image: Image, diff_id: str, created: str) -> JSON:
    """Return the base's configuration with the image's process, user and folder."""
    process = base.get("config") or {}
    env = dict(each.split("=", 1) for each in process.get("Env") or ()) | {**image.env}
    process = {**process, "Env": [f"{name}={value}" for name, value in env.items()]}
    process |= {"User": image.user, "WorkingDir": image.folder}
    if image.entrypoint:
        process = {**process, "Entrypoint": [*image.entrypoint], "Cmd": None}
    return {
        **base,
        "created": created,
        "config": process,
        "rootfs": {"type": "layers", "diff_ids": [*base["rootfs"]["diff_ids"], diff_id]},
        "history": [
            *(base.get("history") or ()),
            {"created": created, "created_by": f"make release: {image.name}"},
        ],
    }


def _encoded(document: JSON) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
