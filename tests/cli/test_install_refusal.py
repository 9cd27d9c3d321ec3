"""What `dlr install` does where it may not see who else is there."""

from __future__ import annotations

from typing import Any

import pytest

from controller.errors import Forbidden, NotFound
from dlr.commands.install.installer import Installer


class OneNamespace:
    """An API server that lets one look into single namespaces only."""

    namespace = "dlr-one"

    def get(self, kind: Any, name: str) -> dict[str, Any]:
        if kind.plural == "namespaces":
            return {"metadata": {"name": name}}
        raise NotFound(404, "NotFound", "not there", {"name": "it"})

    def find(self, kind: Any, *, all_namespaces: bool = False, label_selector: str = "") -> list[Any]:
        if all_namespaces:
            raise Forbidden(403, "Forbidden", "You may not list deployments.")
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
    with pytest.raises(Forbidden, match="may not list"):
        Installer(OneNamespace(), None, dry_run=False).refuse_others(replace_crds=False)
