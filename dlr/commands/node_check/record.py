"""`dlr node-check history NODE`: the findings of a node's last checks, from its record."""

from __future__ import annotations

from crds import names
from crds.findings import Finding
from dlr.commands.errors import CommandError
from dlr.commands.output import Format, print_json, show_table
from dlr.job.wording import age, utc_now
from dlr.kube.api import NODES, Api
from dlr.kube.errors import NotFound
from reconcilers.findings.record import read_record

COLUMNS = ("AGE", "CHECK", "VERDICT", "PASSED", "FAILED", "FAILED WITH")


def show_record(api: Api, name: str, output: Format) -> None:
    """Show the findings, the newest first.

    Raises:
        CommandError: there is no such node, or it or its record cannot be read.
    """
    try:
        node = api.get(NODES, name)
    except NotFound as failure:
        raise CommandError(f"There is no node {name!r}: see `kubectl get nodes`.") from failure
    record = read_record(node)[::-1]
    if not record and (node["metadata"].get("annotations") or {}).get(names.ANNOTATION_RECORD):
        raise CommandError(
            f"The record of {name}, its annotation {names.ANNOTATION_RECORD}, cannot be read: it was edited. "
            "The next check that counts for its cordon writes it again."
        )
    if output is Format.JSON:
        print_json([finding.to_wire() for finding in record])
        return
    if not record:
        print(
            f"{name} has no record: since it was added, no check of it has ended in a namespace that may "
            "have nodes cordoned."
        )
        return
    now = utc_now()
    show_table(COLUMNS, [(age(finding.time.isoformat(), now), *columns(finding)) for finding in record])


def columns(finding: Finding) -> tuple[object, ...]:
    """Return the cells of a row except the age; partners are those of otherwise unexplained failures."""
    partners = ", ".join(finding.failed_with)
    return finding.source, finding.verdict.value, finding.passed, finding.failed, partners
