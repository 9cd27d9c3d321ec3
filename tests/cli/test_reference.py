"""The reference has every command and option, and docs/cli.md names every command."""

from __future__ import annotations

import re
from pathlib import Path

from typer import Context

from docs.cli_reference import commands, reference

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "docs" / "cli.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CALL = re.compile(r"\bdlr [a-z][^`|;#()\n]*")
TAKES_A_COMMAND = {"dlr run", "dlr exec", "dlr map", "dlr job launch"}

CLUSTERLESS = {
    *("dlr up", "dlr down", "dlr kubeconfig", "dlr convert", "dlr manifests", "dlr bundle", "dlr run"),
    *("dlr exec", "dlr simulate"),
}
WITHOUT_NAMESPACE = {"dlr node-check history", "dlr node-health"}


def test_the_reference_has_every_command_with_its_options() -> None:
    sections = {each.partition("\n")[0]: each for each in reference().split("\n## ")[1:]}
    assert [*sections] == [name for name, _ in commands()]
    for name, command in commands():
        flags = {
            flag for each in command.params for flag in each.opts if each.get_help_record(Context(command))
        }
        assert {flag for flag in flags if flag.startswith("--") and flag not in sections[name]} == set()


def test_every_command_has_a_line_in_the_manual() -> None:
    manual = MANUAL.read_text()
    missing = [name for name, _ in commands() if f"`{name}" not in manual and f"    {name} " not in manual]
    assert not [name for name in missing if name not in ("dlr kubeconfig", "dlr bundle", "dlr job resume")]


def test_every_option_that_a_page_gives_a_command_exists() -> None:
    flags_of = {n: {flag for p in c.params for flag in (*p.opts, *p.secondary_opts)} for n, c in commands()}
    unknown = set()
    for words in (call.split() for page in PAGES for call in CALL.findall(page.read_text())):
        named = (" ".join(words[:length]) for length in (3, 2))
        name = next((each for each in named if each in flags_of.keys() - TAKES_A_COMMAND), None)
        given = {word.partition("=")[0].rstrip(".,:") for word in words if word.startswith("--")}
        unknown |= {(name, flag) for flag in given - {"--help"} if name and flag not in flags_of[name]}
    assert unknown == set()


def test_every_command_that_asks_a_cluster_has_kubectls_options() -> None:
    for name, command in commands():
        if name in CLUSTERLESS:
            continue
        flags = {flag for each in command.params for flag in each.opts}
        wanted = {"--context", "--kubeconfig"} | (
            set() if name in WITHOUT_NAMESPACE else {"--namespace", "-n"}
        )
        assert wanted <= flags, name
