"""The tables of rights in docs/security.md are what the manifests grant, verb by verb."""

from __future__ import annotations

import re
from pathlib import Path

import deploy

Grant = tuple[str, str, str]
"""Resource, the name that it is limited to, verb."""

PAGE = (Path(deploy.__file__).parents[1] / "docs" / "security.md").read_text()


def granted(kind: str) -> set[Grant]:
    """By the Role or ClusterRole of the controller."""
    (role,) = (
        each
        for each in deploy.documents()
        if (each["kind"], each["metadata"]["name"]) == (kind, "dlr-controller")
    )
    return {
        (resource, name, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or ("",)
        for verb in rule["verbs"]
    }


def tables() -> list[list[tuple[set[Grant], str]]]:
    """Of the section on the controller: what each row grants, and its reason."""
    section = re.split(r"^### ", PAGE, flags=re.MULTILINE)
    (text,) = (each for each in section if each.startswith("What the controller may do"))
    found: list[list[tuple[set[Grant], str]]] = []
    for line in text.splitlines():
        if line == "| resources | verbs | what for |":
            found.append([])
        elif line.startswith("| `"):
            resources, verbs, reason = (cell.strip() for cell in line.strip("|").split("|", 2))
            names = re.fullmatch(r"`(\S+)` called `(\S+)`", resources)
            pairs = [names.groups()] if names else [(each, "") for each in re.findall(r"`(\S+?)`", resources)]
            grants = {(of, name, verb) for of, name in pairs for verb in re.findall(r"`(\w+)`", verbs)}
            found[-1].append((grants, reason))
    return found


def test_tables_say_all_that_the_controller_is_granted_each_once_and_with_a_reason() -> None:
    for table, kind in zip(tables(), ("ClusterRole", "Role"), strict=True):
        said = [grant for grants, _ in table for grant in grants]
        assert len(said) == len(set(said))
        assert set(said) == granted(kind)
        assert all(reason for _, reason in table)


def test_what_the_roles_of_people_are_added_to_is_said() -> None:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    for name in ("dlr-view", "dlr-edit", "dlr-admin"):
        (role,) = (each for each in deploy.documents() if each["metadata"]["name"] == name)
        added = [key.removeprefix(prefix) for key in role["metadata"]["labels"] if key.startswith(prefix)]
        assert f"| `{name}` | {', '.join(f'`{each}`' for each in added)} |" in PAGE
