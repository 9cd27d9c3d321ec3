"""The image of a job that names none."""

from __future__ import annotations

from dlr.kube.api import Api, is_embedded
from dlr.kube.errors import ApiError

UNUSED_IMAGE = "this-machine"
"""Name of an image for the embedded cluster, which runs processes of this machine and no image."""


def default_image(api: Api) -> str | None:
    """Return the image for a job that names none: `UNUSED_IMAGE` on the embedded cluster, None elsewhere."""
    try:
        version, _ = api.version()
    except ApiError:
        return None
    return UNUSED_IMAGE if is_embedded(version) else None
