"""The strategy that docs/strategies.md shows works as it stands there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from bandits import Bandit, play_directed, steady

from repertory.director_config import DirectorConfig
from repertory.parts import SHORT_NAMES, lookup
from services.director import Director

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()


@pytest.fixture
def own_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    match = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tournament.py").write_text(match.group(1))
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        monkeypatch.delitem(sys.modules, name)  # that of another page's example
    monkeypatch.syspath_prepend(tmp_path)
    return "my_package.tournament:Tournament"


def test_it_finds_the_better_of_two(own_strategy: str) -> None:
    config = DirectorConfig(strategy={"name": own_strategy, "window": 80})
    played = play_directed(Bandit(steady(20.0, 400.0), deviation=10.0), 1000, config)
    # Of two draws with replacement one in four is the worse one twice.
    assert (played.arms[200:] == 1).mean() == pytest.approx(0.75, abs=0.06)


def test_it_survives_a_kill(own_strategy: str) -> None:
    config = DirectorConfig(strategy=own_strategy)
    kept, restored = Director(config, ["a", "b"]), Director(config, ["a", "b"], seed=5)
    kept.lease("actor", 7)
    restored.load_state(json.loads(json.dumps(kept.state())))
    assert restored.lease("actor", 30) == kept.lease("actor", 30)


@pytest.mark.parametrize("name", SHORT_NAMES["strategy"])
def test_every_strategy_is_on_the_page(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize(
    "field", [name for name in DirectorConfig.model_fields if name != "strategy"]
)
def test_every_setting_of_the_director_is_on_the_page_with_its_default(field: str) -> None:
    default = DirectorConfig.model_fields[field].default
    shown = f"`{default}`" if isinstance(default, str) else default
    assert f"| `{field}` | {'null' if default is None else shown} |" in PAGE


@pytest.mark.parametrize("name", sorted(set(SHORT_NAMES["strategy"]) - {"uniform", "round_robin"}))
def test_every_setting_of_a_strategy_is_in_its_row(name: str) -> None:
    row = re.findall(rf"^\| `{name}` \| .*$", PAGE, re.MULTILINE)[1]  # the second table
    for field, info in lookup("strategy", name).Config.model_fields.items():
        if field != "name" and (name, field) != ("scripted", "window"):
            shown = "" if field == "script" else f" ({info.default})"
            assert f"`{field}`{shown}" in row.replace("1e-4", "0.0001")
