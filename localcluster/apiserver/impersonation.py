"""`kubectl --as`: acting as somebody else, for those who may."""

from __future__ import annotations

from localcluster.apiserver.authentication import AUTHENTICATED, User, account_groups
from localcluster.apiserver.errors import bad_request
from localcluster.apiserver.rbac import SERVICE_ACCOUNT_PREFIX, Attributes, Authorizer


def impersonated(user: User, name: str, groups: tuple[str, ...], authorizer: Authorizer) -> User:
    """The user that a request acts as: its author, unless it names somebody else."""
    if not name:
        if groups:
            raise bad_request("Impersonate-Group needs Impersonate-User")
        return user
    namespace, account = _account(name)
    if account:
        wanted = Attributes("impersonate", "", "serviceaccounts", namespace=namespace, name=account)
    else:
        wanted = Attributes("impersonate", "", "users", name=name)
    authorizer.authorize(user, wanted)
    for group in groups:
        authorizer.authorize(user, Attributes("impersonate", "", "groups", name=group))
    own = account_groups(namespace) if account else (AUTHENTICATED,)
    return User(name, groups=(*groups, AUTHENTICATED) if groups else own)


def _account(name: str) -> tuple[str, str]:
    """Namespace and name of a ServiceAccount; empty for other users."""
    if not name.startswith(SERVICE_ACCOUNT_PREFIX):
        return "", ""
    namespace, _, account = name.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    return namespace, account
