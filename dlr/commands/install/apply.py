"""One object of an installation, brought to what its manifest says."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from dlr.commands.errors import CommandError
from dlr.commands.install.kinds import is_ours, kind_of, title_of
from dlr.commands.install.merge import LAST_APPLIED, annotated, last_applied, three_way
from dlr.kube.api import Api, ApiFailure

JSON = dict[str, Any]

_NOT_FOUND, _CONFLICT, _FORBIDDEN = 404, 409, 403
_ATTEMPTS = 3
"""For an object that appears or disappears between a look and a write."""
_BOOKKEEPING = ("resourceVersion", "generation", "managedFields")


class Outcome(StrEnum):
    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"
    LEFT = "left as it is: it was there before dlr"
    NOT_TRIED = "created, untried: the API server cannot try it before there is its namespace"


def require_served(api: Api, manifests: Iterable[JSON]) -> None:
    """Raises CommandError if the API server does not know a kind; before anything is written, that is."""
    for manifest in {manifest["kind"]: manifest for manifest in manifests}.values():
        try:
            api.within(manifest["metadata"].get("namespace")).get(
                kind_of(manifest), manifest["metadata"]["name"]
            )
        except ApiFailure as failure:
            if failure.status == _NOT_FOUND and not failure.names_object:
                raise _refused(manifest, failure) from failure


def apply(api: Api, manifest: JSON, *, dry_run: bool = False) -> Outcome:
    """Create or patch the object. With `dry_run` the API server does all of it but the storing.

    A namespace that is somebody else's is left alone: its labels decide which Pods may run in it.

    Raises CommandError, with a sentence that names the object, if the API server refuses.
    """
    kind, name = kind_of(manifest), manifest["metadata"]["name"]
    scoped = api.within(manifest["metadata"].get("namespace"))
    modified = annotated(manifest)
    for _ in range(_ATTEMPTS):
        try:
            live = scoped.get(kind, name)
        except ApiFailure as failure:
            if failure.status != _NOT_FOUND:
                raise _refused(manifest, failure) from failure
            try:
                scoped.create(kind, modified, dry_run=dry_run)
            except ApiFailure as refusal:
                if refusal.status == _CONFLICT:
                    continue
                if dry_run and refusal.status == _NOT_FOUND and refusal.names_object:
                    return Outcome.NOT_TRIED
                raise _refused(manifest, refusal) from refusal
            return Outcome.CREATED
        if manifest["kind"] == "Namespace" and not is_ours(live):
            return Outcome.LEFT
        patch = three_way(last_applied(live), modified, live)
        if not patch:
            return Outcome.UNCHANGED
        try:
            patched = scoped.patch(kind, name, patch=patch, dry_run=dry_run)
        except ApiFailure as refusal:
            if refusal.status in (_NOT_FOUND, _CONFLICT):
                continue
            raise _refused(manifest, refusal) from refusal
        return Outcome.UNCHANGED if _substance(patched) == _substance(live) else Outcome.CONFIGURED
    raise CommandError(f"{title_of(manifest)} is being changed by somebody else; run it again.")


def _substance(live: JSON) -> JSON:
    """What a person would call the object: a patch that only writes down what was applied changes nothing."""
    metadata = {key: value for key, value in live["metadata"].items() if key not in _BOOKKEEPING}
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != LAST_APPLIED}
    return {**live, "metadata": {**metadata, "annotations": annotations}}


def _refused(manifest: JSON, failure: ApiFailure) -> CommandError:
    what = title_of(manifest)
    if failure.status == _FORBIDDEN:
        return CommandError(
            f"{what}: {failure} Whoever installs dlr needs the rights that `dlr doctor` lists."
        )
    if failure.status == _NOT_FOUND and not failure.names_object:
        return CommandError(f"{what}: {failure} See `dlr doctor`.")
    return CommandError(f"{what}: {failure}")
