"""What the API server refuses for what it is, rather than for when it came, and when to ask again. Pure."""

from __future__ import annotations

from controller.errors import Forbidden, Invalid, NamespaceTerminating, Refused

RETRY_SECONDS = 30.0
TRIES_PER_SECOND = 50
"""Of so many objects that each would otherwise be tried too often."""
_DENIED = ("denied the request", "denied request")
"""What webhooks and ValidatingAdmissionPolicies say, with any code: 400 if a webhook gives none, of a policy
422 by default (https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/)."""


def is_denial(error: Refused) -> bool:
    """Whether a webhook or a policy refuses the object."""
    return any(word in str(error) for word in _DENIED)


def is_refusal(error: Refused) -> bool:
    """Whether it is to be told and tried again later: the object is invalid, or a quota, a right, a policy or
    a webhook forbids it. All else is a race, or nothing that anybody foresaw."""
    if isinstance(error, NamespaceTerminating):
        return False
    return isinstance(error, Invalid | Forbidden) or is_denial(error)


def retry_seconds(objects: int = 1) -> float:
    """After how long so many that were refused are asked for again."""
    return max(RETRY_SECONDS, objects / TRIES_PER_SECOND)
