"""mkdocs hooks: pages of fields and commands, links from docs/ to the repository, version, and markup."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from crds.release import VERSION  # noqa: E402
from docs.cli_reference import reference  # noqa: E402
from docs.markup import labelled, with_languages  # noqa: E402

CRDS = ("elasticjobs", "scaleplans", "nodechecks", "elasticworkers", "elasticworlds", "shardsets")
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)(?:#[^)\s]*)?\)")
REMOTE = re.compile(r"(?:https://|git@|ssh://git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?")
"""Host and path of a repository."""

BEHIND_GUIDES = "---\nsearch:\n  boost: 0.2\n---\n\n"
"""Begins a page of reference, which the search shows after those that explain."""

TEMPLATES = ("template", "podTemplate")
"""Fields that hold a Pod template, which Kubernetes documents."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version, and the repository that this clone is of."""
    config.site_name = f"dlr {VERSION}"
    command = ["git", "config", "--get", "remote.origin.url"]
    remote = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if address := REMOTE.fullmatch(remote.stdout.strip()):
        config.repo_url = "https://{}/{}".format(*address.groups())
        config.repo_name = address[2]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of fields and commands, and the files outside docs/ that pages link to."""
    files.append(File.generated(config, "fields.md", content=BEHIND_GUIDES + fields_page()))
    files.append(File.generated(config, "cli-reference.md", content=BEHIND_GUIDES + reference()))
    linked = {
        name for file in files.documentation_pages() for _, name in OUTSIDE.findall(file.content_string)
    }
    for name in sorted(linked):
        if (ROOT / name).is_file():
            files.append(File.generated(config, f"source/{name}.txt", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ at the copies in the site; a link to a folder becomes plain text."""
    del page, config, files

    def inside(match: re.Match[str]) -> str:
        text, name = match.groups()
        return f"[{text}](source/{name}.txt)" if (ROOT / name).is_file() else text

    return with_languages(OUTSIDE.sub(inside, markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give cells of tables the labels of their columns, which a phone shows."""
    del page, config, files
    return labelled(html)


def fields_page() -> str:
    """Return the Markdown page with a table of fields for each kind."""
    parts = [
        "# Fields",
        "Every field of dlr's kinds, as `kubectl explain` shows them. Generated from the CRDs; "
        "a field without a default is optional unless it says *required*.",
    ]
    for name in CRDS:
        definition = yaml.safe_load((ROOT / "crds" / "yaml" / f"{name}.yaml").read_text())
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        parts.append(f"## {definition['spec']['names']['kind']}\n\n{schema.get('description', '')}")
        for part in ("spec", "status"):
            if part in schema["properties"]:
                rows = [*rows_of(schema["properties"][part], part)]
                table = "\n".join(f"| `{path}` | {kind} | {text} |" for path, kind, text in rows)
                parts.append(f"| field | type | meaning |\n|---|---|---|\n{table}")
    return "\n\n".join(parts) + "\n"


def rows_of(schema: dict[str, Any], path: str) -> list[tuple[str, str, str]]:
    """List path, type and meaning of each field below `schema`.

    Pod templates are left out, and so are the replica types whose fields are the same as `worker`'s.
    """
    rows: list[tuple[str, str, str]] = []
    for name, field in schema.get("properties", {}).items():
        below, here = field, f"{path}.{name}"
        if field.get("type") == "array":
            below, here = field["items"], f"{here}[]"
        elif isinstance(field.get("additionalProperties"), dict):
            below, here = field["additionalProperties"], f"{here}.<name>"
        text = " ".join(str(field.get("description") or below.get("description") or "").split())
        if "default" in field:
            text += f" Default: `{field['default']}`."
        if name in schema.get("required", ()):
            text += " *Required.*"
        kind = field.get("type") or (
            "integer or string" if field.get("x-kubernetes-int-or-string") else "any"
        )
        rows.append((here, str(kind), text.replace("|", "\\|").strip()))
        if name not in TEMPLATES and (not path.endswith(".replicaSpecs") or name == "worker"):
            rows += rows_of(below, here)
    return rows
