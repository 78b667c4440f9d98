"""Names of replaceable parts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from actors.exploration.gaussian import Gaussian
from repertory.config import OffPolicyConfig, ReplayConfig
from repertory.errors import UsageError
from repertory.parts import SHORT_NAMES, load_attribute, lookup

EVERY_SHORT_NAME = [(kind, name) for kind, names in SHORT_NAMES.items() for name in names]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_parts.py").write_text(
        "from repertory.settings import PartSettings\n"
        "class Nudge:\n"
        "    class Config(PartSettings):\n"
        "        name: str = 'my_parts:Nudge'\n"
        "        size: float = 0.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_parts"
    sys.modules.pop("my_parts", None)


@pytest.mark.parametrize(("kind", "name"), EVERY_SHORT_NAME)
def test_every_short_name_leads_to_a_class_with_settings(kind, name):
    part = lookup(kind, name)
    settings = part.Config(algorithm=name) if kind == "algorithm" else part.Config()
    assert (settings.algorithm if kind == "algorithm" else settings.name) == name


def test_dotted_path_leads_to_the_same_class():
    assert lookup("exploration", "actors.exploration.gaussian:Gaussian") is Gaussian


def test_unknown_name_is_refused_with_the_nearest_and_all_others():
    with pytest.raises(UsageError) as caught:
        lookup("exploration", "gausian")
    message = str(caught.value)
    assert "'gausian' is not a known exploration" in message
    assert "did you mean gaussian?" in message
    assert "epsilon_greedy, gaussian, none, ornstein_uhlenbeck" in message
    assert "package.module:Name" in message


def test_name_of_another_kind_is_refused():
    with pytest.raises(UsageError, match="'gaussian' is not a known sampler"):
        lookup("sampler", "gaussian")


def test_module_that_cannot_be_imported_is_named_with_a_remedy():
    with pytest.raises(UsageError, match=r"cannot import 'no_such_module'.*PYTHONPATH"):
        lookup("policy", "no_such_module:Thing")


def test_attribute_that_is_missing_is_named_with_the_nearest():
    with pytest.raises(UsageError, match=r"has no 'Gausian'.*did you mean Gaussian"):
        lookup("exploration", "actors.exploration.gaussian:Gausian")


@pytest.mark.parametrize("path", ["no_colon", ":name", "module:"])
def test_path_that_is_not_one_is_refused(path):
    with pytest.raises(UsageError, match=r"package\.module:Name"):
        load_attribute(path, "the reward function")


def test_part_field_takes_a_short_name():
    replay = ReplayConfig(sampler="prioritized")
    assert (replay.sampler.name, replay.sampler.alpha) == ("prioritized", 0.6)


def test_part_field_takes_a_name_with_settings():
    assert ReplayConfig(sampler={"name": "prioritized", "alpha": 0.7}).sampler.alpha == 0.7


def test_part_field_takes_a_part_of_the_users_own(own_module):
    config = OffPolicyConfig(
        algorithm="td3", exploration={"name": f"{own_module}:Nudge", "size": 0.25}
    )
    assert config.exploration.size == 0.25


def test_part_field_keeps_settings_that_are_settings_already():
    settings = Gaussian.Config()
    assert OffPolicyConfig(algorithm="td3", exploration=settings).exploration is settings


@pytest.mark.parametrize("value", [5, ["uniform"], {"alpha": 0.5}, {"name": 3}, None])
def test_part_field_refuses_what_names_no_part(value):
    with pytest.raises(UsageError, match="does not name a sampler"):
        ReplayConfig(sampler=value)


def test_part_settings_survive_a_dump_whole():
    dumped = ReplayConfig(sampler={"name": "prioritized", "alpha": 0.7}).model_dump()
    assert dumped["sampler"]["alpha"] == 0.7
    assert ReplayConfig(**dumped) == ReplayConfig(sampler={"name": "prioritized", "alpha": 0.7})


def test_the_floor_imports_neither_torch_nor_what_stands_on_it():
    script = (
        "import sys, repertory.config, repertory.envs, repertory.parts\n"
        "above = {'torch', 'actors', 'learner', 'buffer_server', 'services'} & set(sys.modules)\n"
        "sys.exit(str(above) if above else 0)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stderr
