"""What the documentation shows works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from small_runs import settings

from repertory.api import train

DOCS = Path(__file__).parents[2] / "docs"


def test_the_algorithm_of_the_tutorial_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / "adding-an-algorithm.md").read_text()
    match = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert match is not None
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "slow_td3.py").write_text(match.group(1))
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        monkeypatch.delitem(sys.modules, name)  # that of another page's example
    monkeypatch.syspath_prepend(tmp_path)
    result = train(
        "Pendulum-v1",
        "my_package.slow_td3:SlowTD3",
        run_dir=tmp_path / "run",
        settings=settings("td3", **{"learner.policy_lr": 1e-5}),
        progress=False,
    )
    assert result.updates > 0


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
