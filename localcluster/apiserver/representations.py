"""Renders objects in the form a client asks for: as they are, as rows of a table, or their metadata."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

from localcluster.apiserver.errors import not_acceptable

META_VERSIONS = ("v1", "v1beta1")


class Representation(Enum):
    OBJECTS = "objects"
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


_NAMES = {
    "Table": Representation.TABLE,
    "PartialObjectMetadata": Representation.METADATA,
    "PartialObjectMetadataList": Representation.METADATA,
}


@lru_cache(maxsize=256)
def negotiate(accept: str) -> Representation:
    """The first form in an Accept header that this server can give."""
    for media_range in (accept or "*/*").split(","):
        media_type, *parameters = (part.strip() for part in media_range.split(";"))
        if media_type not in ("application/json", "application/*", "*/*"):
            continue
        wanted = dict(parameter.partition("=")[::2] for parameter in parameters)
        if "as" not in wanted:
            return Representation.OBJECTS
        known = wanted.get("g") == "meta.k8s.io" and wanted.get("v") in META_VERSIONS
        if known and wanted["as"] in _NAMES:
            return _NAMES[wanted["as"]]
    raise not_acceptable("application/json")
