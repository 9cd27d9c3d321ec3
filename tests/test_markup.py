"""What the site adds to pages: languages of indented blocks, and labels of cells."""

from __future__ import annotations

import pytest

from docs.markup import labelled, with_languages


@pytest.mark.parametrize(
    ("first", "language"), [("dlr up", "bash"), ("$ dlr up", "console"), ("digits-worker-0 rank 0", "text")]
)
def test_an_indented_block_has_a_language(first: str, language: str) -> None:
    page = f"Start:\n\n    {first}\n\n      more\n\nAnd on.\n"
    assert with_languages(page) == f"Start:\n\n```{language}\n{first}\n\n  more\n```\n\nAnd on.\n"


def test_fenced_blocks_and_lists_stay_as_they_are() -> None:
    page = "```yaml\na:\n\n    b: 1\n```\n\n* one\n\n      dlr up\n\n* two\n"
    assert with_languages(page) == page


def test_cells_have_the_labels_of_their_columns_but_for_the_first() -> None:
    table = "<table><tr><th>#</th><th>symptom</th><th><b>do</b></th></tr><tr><td>1</td><td>a</td><td>b</td></tr></table>"
    assert labelled(table) == table.replace("<table>", "<table data-rows>").replace(
        "<td>a</td><td>b", '<td data-label="symptom">a</td><td data-label="do">b'
    )


def test_tables_of_figures_stay_as_they_are() -> None:
    table = '<table><tr><th style="text-align: right;">s</th></tr><tr><td>1</td></tr></table>'
    assert labelled(table) == table
