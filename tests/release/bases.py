"""A base image as `skopeo copy` lays it out: one small layer."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Any

from release.archive import File, write_tar
from release.images import CONFIG, INDEX, LAYER, MANIFEST

JSON = dict[str, Any]


def make_base(
    folder: Path, architecture: str = "amd64", *, python: str = "3.13.14", nested: bool = False
) -> Path:
    """Write an OCI layout.

    Args:
        python: version of Python that the image says it has.
        nested: as of an image for several architectures.
    """
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def add(content: bytes, media_type: str, **more: Any) -> JSON:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content), **more}

    layer = io.BytesIO()
    write_tar(layer, {"etc/os-release": File(b"ID=small\n")}, 0)
    config = {
        "os": "linux",
        "architecture": architecture,
        "config": {
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", f"PYTHON_VERSION={python}"],
            "Cmd": ["python3"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
        "history": [{"created_by": "the base"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": add(json.dumps(config).encode(), CONFIG),
        "layers": [add(gzip.compress(layer.getvalue(), mtime=0), LAYER)],
    }
    descriptor = add(json.dumps(manifest).encode(), MANIFEST)
    if nested:
        of_others = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
        descriptor = add(json.dumps(of_others).encode(), INDEX)
    index = {"schemaVersion": 2, "manifests": [descriptor]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
