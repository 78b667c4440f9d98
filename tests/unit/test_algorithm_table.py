"""The table of algorithms, and that the documentation shows the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.algorithm_table import AlgorithmRow, algorithm_rows

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
ROWS = {row.name: row for row in algorithm_rows()}


def test_row_says_where_an_algorithm_fits_and_what_can_be_switched() -> None:
    assert ROWS["dqn"] == AlgorithmRow(
        name="dqn",
        data="off-policy",
        actions="discrete",
        observations="vector, pixels",
        options="target_network, double, dueling, noisy, loss huber/squared, n_step, prioritized",
        paper="arXiv 1312.5602, Nature 518, arXiv 1509.06461, 1511.06581",
    )
    assert ROWS["td3"].actions == "continuous, bounded"
    assert ROWS["ppo"].options == "mode minibatch/full_batch, normalize_advantage"


@pytest.mark.parametrize("name", ROWS)
def test_page_shows_where_every_algorithm_fits(name: str) -> None:
    row = ROWS[name]
    shown = f"| {row.data} | {row.actions} | {row.observations} |"
    lines = [line for line in PAGE.splitlines() if re.match(rf"\|[^|]*`{name}`", line)]
    assert any(shown in line for line in lines), f"docs/algorithms.md lacks: | `{name}` {shown}"


@pytest.mark.parametrize("name", ROWS)
def test_page_shows_the_options_and_the_paper_of_every_algorithm(name: str) -> None:
    row = ROWS[name]
    shown = f"| `{name}` | {row.options} | {row.paper} |"
    assert shown in PAGE.splitlines(), f"docs/algorithms.md lacks: {shown}"
