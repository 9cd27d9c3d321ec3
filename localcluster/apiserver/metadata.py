"""`metadata`: names and labels that Kubernetes accepts, and the fields that only the server writes."""

from __future__ import annotations

import re
import secrets
import uuid
from datetime import datetime

from localcluster.apiserver.errors import forbidden_field, invalid_value, required
from localcluster.client.clock import timestamp
from localcluster.resource import JSON, ResourceType

RANDOM_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
RANDOM_SUFFIX_LENGTH = 5
GENERATED_NAME_MAX = 63
ANNOTATIONS_MAX_BYTES = 256 * 1024

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_DNS_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
    "validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_KEY_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
SERVER_FIELDS = (
    *("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"),
    "managedFields",
)


def random_name(prefix: str) -> str:
    """A name for `generateName`."""
    suffix = "".join(secrets.choice(RANDOM_SUFFIX_ALPHABET) for _ in range(RANDOM_SUFFIX_LENGTH))
    return prefix[: GENERATED_NAME_MAX - RANDOM_SUFFIX_LENGTH] + suffix


def begin_life(metadata: JSON, now: datetime) -> None:
    """Set the fields of a new object that the server assigns."""
    for server_field in (*SERVER_FIELDS, "resourceVersion", "selfLink"):
        metadata.pop(server_field, None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = timestamp(now)


def carry_over(old: JSON, new: JSON) -> None:
    """Keep in an update what clients cannot change."""
    for server_field in SERVER_FIELDS:
        if server_field in old:
            new[server_field] = old[server_field]
        else:
            new.pop(server_field, None)
    new["resourceVersion"] = old["resourceVersion"]
    new.pop("selfLink", None)
    if not new.get("generateName") and old.get("generateName"):
        new["generateName"] = old["generateName"]


def tidy(metadata: JSON) -> None:
    """Leave out what is empty, as Kubernetes does when it writes an object."""
    for name in ("labels", "annotations", "finalizers", "ownerReferences"):
        if name in metadata and not metadata[name]:
            del metadata[name]


def name_faults(resource_type: ResourceType, name: str, path: str = "metadata.name") -> list[JSON]:
    """Return the faults of a name, by the kind's own rule."""
    if resource_type.group == "rbac.authorization.k8s.io":
        bad = name in (".", "..") or "/" in name or "%" in name
        return [invalid_value(path, name, "may not contain '/' or '%'")] if bad else []
    if resource_type.kind == "Service":
        return _name_fault(path, name, r"[a-z]([-a-z0-9]*[a-z0-9])?", 63, _DNS_1035_TEXT)
    if resource_type.kind == "Namespace":
        return _name_fault(path, name, _LABEL, 63, LABEL_TEXT)
    return _name_fault(path, name, _SUBDOMAIN, 253, _SUBDOMAIN_TEXT)


def is_label(text: str) -> bool:
    """RFC 1123: what names containers, among others."""
    return len(text) <= 63 and re.fullmatch(_LABEL, text) is not None


def _name_fault(path: str, name: str, pattern: str, limit: int, text: str) -> list[JSON]:
    if len(name) > limit:
        return [invalid_value(path, name, f"must be no more than {limit} characters")]
    return [] if re.fullmatch(pattern, name) else [invalid_value(path, name, text)]


def metadata_faults(resource_type: ResourceType, metadata: JSON) -> list[JSON]:
    """Return the faults of an object's metadata."""
    faults = name_faults(resource_type, metadata["name"])
    for key, value in (metadata.get("labels") or {}).items():
        faults += _key_faults("metadata.labels", key)
        if len(value) > 63:
            faults.append(invalid_value("metadata.labels", value, "must be no more than 63 characters"))
        elif not re.fullmatch(f"({_QUALIFIED})?", value):
            faults.append(invalid_value("metadata.labels", value, _LABEL_VALUE_TEXT))
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        faults += _key_faults("metadata.annotations", key.lower())
    if sum(len(key) + len(value) for key, value in annotations.items()) > ANNOTATIONS_MAX_BYTES:
        why = f"may not be more than {ANNOTATIONS_MAX_BYTES} bytes"
        faults.append(
            {"reason": "FieldValueTooLong", "message": f"Too long: {why}", "field": "metadata.annotations"}
        )
    for finalizer in metadata.get("finalizers") or ():
        faults += _key_faults("metadata.finalizers", finalizer)
    return faults + _owner_faults(metadata.get("ownerReferences") or [])


def _key_faults(path: str, key: str) -> list[JSON]:
    prefix, _, name = key.rpartition("/")
    if "/" in key and not re.fullmatch(_SUBDOMAIN, prefix):
        return [invalid_value(path, key, f"prefix part {_SUBDOMAIN_TEXT}")]
    if not name:
        return [invalid_value(path, key, "name part must be non-empty")]
    if len(name) > 63:
        return [invalid_value(path, key, "name part must be no more than 63 characters")]
    return [] if re.fullmatch(_QUALIFIED, name) else [invalid_value(path, key, _LABEL_KEY_TEXT)]


def _owner_faults(owners: list[JSON]) -> list[JSON]:
    faults: list[JSON] = []
    for index, owner in enumerate(owners):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                faults.append(required(f"metadata.ownerReferences[{index}].{name}", "must not be empty"))
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        why = (
            "Only one reference can have Controller set to true. Found "
            f'"true" in references for {controllers[0].get("kind")}/{controllers[0].get("name")} and '
            f"{controllers[1].get('kind')}/{controllers[1].get('name')}"
        )
        faults.append(invalid_value("metadata.ownerReferences", "", why))
    return faults


def update_faults(old: JSON, new: JSON) -> list[JSON]:
    """Return the changes of metadata that are not allowed."""
    faults = []
    added = [each for each in new.get("finalizers") or [] if each not in (old.get("finalizers") or [])]
    if old.get("deletionTimestamp") and added:
        why = (
            "no new finalizers can be added if the object is being deleted, found new finalizers "
            f"[]string{{{', '.join(f'{chr(34)}{each}{chr(34)}' for each in added)}}}"
        )
        faults.append(forbidden_field("metadata.finalizers", why))
    return faults
