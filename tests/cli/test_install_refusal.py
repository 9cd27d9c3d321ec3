"""What `dlr install` does where it may not see who else is there."""

from __future__ import annotations

from typing import Any

import pytest

from agent.kube.errors import ForbiddenError, NotFoundError
from dlr.commands.install.installer import Installer


class OneNamespace:
    """An API server that lets one look into single namespaces only."""

    namespace = "dlr-one"

    def get(self, kind: Any, name: str) -> dict[str, Any]:
        if kind.plural == "namespaces":
            return {"metadata": {"name": name}}
        raise NotFoundError("not there", 404, names_object=True)

    def find(self, kind: Any, *, all_namespaces: bool = False, label_selector: str = "") -> list[Any]:
        if all_namespaces:
            raise ForbiddenError("You may not list deployments.", 403, "Forbidden")
        return []


def test_an_admin_of_one_namespace_is_warned_of_what_he_cannot_see(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Installer(OneNamespace(), "team-a", dry_run=False).refuse_others(replace_crds=False)
    assert capsys.readouterr().err.splitlines() == [
        f"dlr: warning: whether another {what} looks after namespace team-a could not be checked: "
        "You may not list deployments."
        for what in ("controller of dlr", "operator of DLRover's")
    ]


def test_for_all_namespaces_one_has_to_see_them_all() -> None:
    with pytest.raises(ForbiddenError, match="may not list"):
        Installer(OneNamespace(), None, dry_run=False).refuse_others(replace_crds=False)
