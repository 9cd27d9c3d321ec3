"""docs/cli-reference.md is what the commands say of themselves, and docs/cli.md names every command."""

from __future__ import annotations

from pathlib import Path

from docs.cli_reference import FILE, commands, reference

CLUSTERLESS = {
    *("dlr up", "dlr down", "dlr kubeconfig", "dlr convert", "dlr manifests", "dlr bundle", "dlr run"),
    *("dlr exec", "dlr simulate"),
}
WITHOUT_NAMESPACE = {"dlr node-check history", "dlr node-health"}


def test_the_page_is_in_step() -> None:
    assert FILE.read_text() == reference(), "run: python docs/cli_reference.py"


def test_every_command_has_a_line_in_the_manual() -> None:
    manual = (Path(FILE).parent / "cli.md").read_text()
    missing = [name for name, _ in commands() if f"`{name}" not in manual and f"    {name} " not in manual]
    assert not [name for name in missing if name not in ("dlr kubeconfig", "dlr bundle", "dlr job resume")]


def test_every_command_that_asks_a_cluster_has_kubectls_options() -> None:
    for name, command in commands():
        if name in CLUSTERLESS:
            continue
        flags = {flag for each in command.params for flag in each.opts}
        wanted = {"--context", "--kubeconfig"} | (
            set() if name in WITHOUT_NAMESPACE else {"--namespace", "-n"}
        )
        assert wanted <= flags, name
