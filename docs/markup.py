"""What the site adds to the text of pages. Pure."""

from __future__ import annotations

import re

PROGRAMS = (
    *("cd", "curl", "docker", "dlr", "export", "for", "git", "helm", "kubectl", "make", "pip", "pkill"),
    *("pytest", "python", "python3", "skopeo"),
)
SHELL = re.compile(rf"    (?:#|kind/\w+\.sh|(?:{'|'.join(PROGRAMS)})\b)")
"""First line of an indented block of commands."""
_BLOCK = re.compile(r"(?:(?<=\n\n)|\A)    \S.*\n(?:    .*\n|\n(?=    ))*(?=\n|\Z)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th\b.*?>(.*?)</th>", re.DOTALL)
_TAG = re.compile(r"<.*?>")
_LEAST_COLUMNS = 3
"""Of a table whose cells need labels on a phone."""


def with_languages(markdown: str) -> str:
    """Fence a page's indented blocks, those of commands as a shell's."""
    parts = _FENCED.split(markdown)
    return "".join(part if part.startswith("```") else _BLOCK.sub(_fenced, part) for part in parts)


def _fenced(found: re.Match[str]) -> str:
    block = found.group()
    prompt = block.startswith("    $ ")
    language = "console" if prompt else "bash" if SHELL.match(block) else "text"
    lines = (line[4:] for line in block.rstrip("\n").split("\n"))
    return f"```{language}\n" + "\n".join(lines) + "\n```\n"


def labelled(html: str) -> str:
    """Mark a page's tables of words with `data-rows`, and their cells with the label of the column."""
    return _TABLE.sub(_labelled_table, html)


def _labelled_table(found: re.Match[str]) -> str:
    table = found.group()
    if "text-align: right" in table:
        return table
    labels = [
        re.sub(r"<.*?>", "", each).strip() for each in re.findall(r"<th\b.*?>(.*?)</th>", table, re.DOTALL)
    ]

    def row(line: re.Match[str]) -> str:
        cells = iter(range(len(labels)))
        return re.sub(r"<td>", lambda _: _cell(labels, next(cells)), line.group())

    return re.sub(r"<tr>.*?</tr>", row, table.replace("<table>", "<table data-rows>", 1), flags=re.DOTALL)


def _cell(labels: list[str], column: int) -> str:
    is_labelled = len(labels) >= _LEAST_COLUMNS and column > 0 and labels[column]
    return f'<td data-label="{labels[column]}">' if is_labelled else "<td>"
