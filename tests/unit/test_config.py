"""The settings of a run: layers, refusals, YAML."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from repertory import config as config_module
from repertory.config import RunConfig, merge, nest, parse_assignment, preset, resolve
from repertory.errors import UsageError
from repertory.parts import SHORT_NAMES, lookup
from repertory.settings import Settings
from services.clusters import inventory

ALGORITHMS = sorted(SHORT_NAMES["algorithm"])
PACKAGES = ("repertory", "buffer_server", "actors", "learner", "services")


@pytest.fixture(autouse=True)
def no_presets(monkeypatch):
    """Presets are recommendations and change; the layers do not depend on what they say."""
    monkeypatch.setattr(config_module, "preset", lambda algorithm, env_id: {})


@pytest.fixture
def write(tmp_path):
    def write_file(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write_file


def refusal(overrides: dict, algorithm: str = "td3") -> str:
    with pytest.raises(UsageError) as caught:
        resolve("Pendulum-v1", [algorithm], overrides=overrides)
    return str(caught.value)


# Layers


def test_each_layer_overrides_the_one_below(monkeypatch, write):
    defaults = resolve("Pendulum-v1", ["td3"]).learners["td3"]
    recommended = {"batch_size": 11, "n_step": 2, "tau": 0.5}
    monkeypatch.setattr(
        config_module, "preset", lambda algorithm, env_id: {"learner": dict(recommended)}
    )
    config = resolve(
        "Pendulum-v1",
        ["td3"],
        file=write("learner: {n_step: 3, tau: 0.6}"),
        overrides={"learner.tau": 0.7},
    )
    learner = config.learners["td3"]
    assert learner.gamma == defaults.gamma == 0.99  # defaults
    assert learner.batch_size == 11  # preset over defaults
    assert learner.n_step == 3  # file over preset
    assert learner.tau == 0.7  # command line over file


def test_preset_is_asked_for_the_chosen_algorithm_and_environment(monkeypatch, write):
    asked = []

    def recorded(algorithm, env_id):
        asked.append((algorithm, env_id))
        return {}

    monkeypatch.setattr(config_module, "preset", recorded)
    resolve("CartPole-v1", ["dqn", "ppo"], file=write("env: {id: Pendulum-v1}"))
    assert asked == [("dqn", "CartPole-v1"), ("ppo", "CartPole-v1")]


def test_preset_of_an_algorithm_changes_only_its_own_learner(monkeypatch):
    monkeypatch.setattr(
        config_module,
        "preset",
        lambda algorithm, env_id: {"learner": {"lr": 0.5}} if algorithm == "sac" else {},
    )
    learners = resolve("Pendulum-v1", ["td3", "sac"]).learners
    assert (learners["sac"].lr, learners["td3"].lr) == (0.5, 3e-4)


def test_preset_sets_the_sections_of_the_run(monkeypatch):
    monkeypatch.setattr(
        config_module, "preset", lambda algorithm, env_id: {"env": {"copies": 8}, "steps": 77}
    )
    config = resolve("CartPole-v1", ["ppo"])
    assert (config.env.copies, config.steps) == (8, 77)


@pytest.fixture
def own_presets(tmp_path, monkeypatch):
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "td3.yaml").write_text(
        "Pendulum-v1: {learner: {lr: 0.1}}\n'*-v1': {learner: {lr: 0.2}}\n"
    )
    monkeypatch.setattr(config_module.resources, "files", lambda package: tmp_path)


@pytest.mark.usefixtures("own_presets")
@pytest.mark.parametrize(
    ("algorithm", "env_id", "found"),
    [
        ("td3", "Pendulum-v1", {"learner": {"lr": 0.1}}),
        ("td3", "Hopper-v1", {"learner": {"lr": 0.2}}),
        ("td3", "Hopper-v5", {}),
        ("sac", "Pendulum-v1", {}),
        ("my.module:FastTD3", "Pendulum-v1", {}),
    ],
)
def test_preset_is_the_first_pattern_that_matches(algorithm, env_id, found):
    assert preset(algorithm, env_id) == found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_preset_of_ours_is_valid(algorithm, monkeypatch):
    file = resources.files("repertory") / "presets" / f"{algorithm}.yaml"
    for settings in yaml.safe_load(file.read_text()).values():
        monkeypatch.setattr(config_module, "preset", lambda *_, chosen=settings: dict(chosen))
        assert resolve("Any-v0", [algorithm]).learners[algorithm].algorithm == algorithm


def test_environment_of_the_command_line_wins_over_the_file(write):
    config = resolve("CartPole-v1", ["ppo"], file=write("env: {id: Pendulum-v1, copies: 4}"))
    assert (config.env.id, config.env.copies) == ("CartPole-v1", 4)


def test_environment_may_come_from_the_file_alone(write):
    config = resolve(None, ["ppo"], file=write("env: {id: Pendulum-v1}"))
    assert config.env.id == "Pendulum-v1"


def test_environment_may_come_from_an_override_alone():
    assert resolve(None, ["ppo"], overrides={"env.id": "Pendulum-v1"}).env.id == "Pendulum-v1"


def test_kwargs_of_the_environment_are_merged(write):
    config = resolve(
        "Pendulum-v1", ["td3"], file=write("env: {kwargs: {g: 9.8}}"), overrides={"env.kwargs.h": 2}
    )
    assert config.env.kwargs == {"g": 9.8, "h": 2}


def test_no_environment_is_refused_with_an_example():
    with pytest.raises(UsageError, match="no environment: name one, for example"):
        resolve(None, ["td3"])


def test_no_algorithm_is_refused_with_a_remedy(write):
    with pytest.raises(UsageError, match="no algorithm: name one with --algo"):
        resolve("Pendulum-v1", [], file=write("seed: 3"))


# Parts


def test_part_is_merged_where_its_name_stays():
    config = resolve("Pendulum-v1", ["td3"], overrides={"learner.exploration.std.steps": 50})
    exploration = config.learners["td3"].exploration
    assert exploration.name == "gaussian"
    assert (exploration.std.start, exploration.std.steps) == (0.1, 50)


def test_part_is_replaced_whole_where_its_name_changes(write):
    config = resolve(
        "Pendulum-v1",
        ["td3"],
        file=write("learner: {exploration: {name: gaussian, std: {start: 0.7}}}"),
        overrides={"learner.exploration": "ornstein_uhlenbeck"},
    )
    exploration = config.learners["td3"].exploration
    assert exploration == lookup("exploration", "ornstein_uhlenbeck").Config()


def test_part_named_again_keeps_the_settings_below():
    config = resolve(
        "Pendulum-v1",
        ["td3"],
        overrides={"learner.exploration": {"name": "gaussian", "std": {"final": 0.01}}},
    )
    std = config.learners["td3"].exploration.std
    assert (std.start, std.final) == (0.1, 0.01)


def test_part_can_be_replaced_with_settings_in_one_assignment():
    config = resolve(
        "Pendulum-v1",
        ["td3"],
        overrides={"replay.sampler": {"name": "prioritized", "alpha": 0.5}},
    )
    assert (config.replay.sampler.name, config.replay.sampler.alpha) == ("prioritized", 0.5)


def test_part_can_be_named_first_and_set_after():
    config = resolve(
        "Pendulum-v1",
        ["td3"],
        overrides={"learner.exploration": "ornstein_uhlenbeck", "learner.exploration.theta": 0.2},
    )
    assert config.learners["td3"].exploration.theta == 0.2


def test_unknown_part_is_refused_with_the_nearest():
    assert "did you mean gaussian?" in refusal({"learner.exploration": "gausian"})


def test_merge_lays_over_without_touching_the_layer():
    base, layer = {"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 5}, "c": 4}
    merge(base, layer)
    assert base == {"a": {"x": 1, "y": 5}, "b": 3, "c": 4}
    assert layer == {"a": {"y": 5}, "c": 4}


def test_nest_splits_at_the_dots():
    assert nest("a.b.c", 1) == {"a": {"b": {"c": 1}}}


# Portfolios


TWO_LEARNERS = """
learner: {gamma: 0.9, batch_size: 32}
learners:
  quick: {algorithm: td3, lr: 0.01}
  calm: {algorithm: td3, lr: 0.0001, batch_size: 64}
"""


def test_portfolio_of_two_named_learners_of_one_algorithm(write):
    learners = resolve("Pendulum-v1", [], file=write(TWO_LEARNERS)).learners
    assert {name: learner.algorithm for name, learner in learners.items()} == {
        "quick": "td3",
        "calm": "td3",
    }
    assert (learners["quick"].lr, learners["calm"].lr) == (0.01, 0.0001)


def test_learner_shorthand_speaks_of_all_and_a_learners_own_settings_win(write):
    learners = resolve("Pendulum-v1", [], file=write(TWO_LEARNERS)).learners
    assert [learner.gamma for learner in learners.values()] == [0.9, 0.9]
    assert (learners["quick"].batch_size, learners["calm"].batch_size) == (32, 64)


def test_learner_shorthand_on_the_command_line_overrides_every_learner(write):
    config = resolve(
        "Pendulum-v1", [], file=write(TWO_LEARNERS), overrides={"learner.batch_size": 16}
    )
    assert [learner.batch_size for learner in config.learners.values()] == [16, 16]


def test_one_learner_can_be_set_by_name(write):
    config = resolve(
        "Pendulum-v1", [], file=write(TWO_LEARNERS), overrides={"learners.calm.tau": 0.5}
    )
    assert (config.learners["quick"].tau, config.learners["calm"].tau) == (0.005, 0.5)


def test_nested_setting_of_one_learner_leaves_the_others_alone(write):
    text = """
learner: {exploration: {std: {start: 0.3}}}
learners:
  a: {algorithm: td3, exploration: {std: {start: 0.5}}}
  b: {algorithm: td3}
"""
    learners = resolve("Pendulum-v1", [], file=write(text)).learners
    assert (learners["a"].exploration.std.start, learners["b"].exploration.std.start) == (0.5, 0.3)


def test_nested_override_of_one_learner_leaves_the_others_alone(write):
    text = """
learner: {exploration: {name: ornstein_uhlenbeck, std: {start: 0.3}}}
learners: {a: {algorithm: td3}, b: {algorithm: td3}}
"""
    learners = resolve(
        "Pendulum-v1",
        [],
        file=write(text),
        overrides={"learners.a.exploration.std.start": 0.5},
    ).learners
    assert (learners["a"].exploration.std.start, learners["b"].exploration.std.start) == (0.5, 0.3)


def test_learner_without_an_algorithm_is_named_after_one(write):
    learners = resolve("Pendulum-v1", [], file=write("learners: {sac: {lr: 0.01}}")).learners
    assert (learners["sac"].algorithm, learners["sac"].lr) == ("sac", 0.01)


def test_learner_without_any_settings_has_the_defaults(write):
    learners = resolve("Pendulum-v1", [], file=write("learners:\n  sac:\n")).learners
    assert learners["sac"] == lookup("algorithm", "sac").Config()


def test_algorithms_asked_for_take_the_place_of_those_in_the_file(write):
    config = resolve("Pendulum-v1", ["sac"], file=write("learners: {td3: {algorithm: td3}}"))
    assert list(config.learners) == ["sac"]


@pytest.mark.parametrize("name", ["best", "last", "ensemble"])
def test_learner_may_not_be_called_what_policy_means_otherwise(write, name):
    with pytest.raises(UsageError, match=f"'{name}' cannot be called so: --policy {name} means"):
        resolve("Pendulum-v1", [], file=write(f"learners: {{{name}: {{algorithm: sac}}}}"))


def test_algorithm_named_twice_is_refused_with_a_remedy():
    with pytest.raises(UsageError, match="names an algorithm twice: give such learners names"):
        resolve("Pendulum-v1", ["td3", "td3"])


def test_dotted_algorithm_is_called_by_its_last_word():
    config = resolve("Pendulum-v1", ["learner.algorithms.td3:TD3"])
    assert list(config.learners) == ["td3"]


def test_unknown_algorithm_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"'td4' is not a known algorithm: did you mean td3\?"):
        resolve("Pendulum-v1", ["td4"])


# Refusals


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("learner.lrr", "learner.lr"),
        ("learner.exploraton", "learner.exploration"),
        ("learner.exploration.std.strat", "learner.exploration.std.start"),
        ("replay.sampler.nam", "replay.sampler.name"),
        ("evaluation.evry", "evaluation.every"),
        ("env.copy", "env.copies"),
        ("stepz", "steps"),
        ("learnr", "learner"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest(key, nearest):
    assert refusal({key: 1}) == f"{key} is not a setting: did you mean {nearest}?"


def test_unknown_key_far_from_all_is_refused_with_all():
    message = refusal({"evaluation.qqqqqq": 1})
    known = "episodes, every, video"
    assert message == f"evaluation.qqqqqq is not a setting: the settings here are {known}"


@pytest.mark.parametrize(
    ("key", "value", "limit", "default"),
    [
        ("learner.lr", 2, "less than or equal to 1", "0.0003"),
        ("learner.lr", -0.1, "greater than or equal to 0", "0.0003"),
        ("learner.gamma", 1.5, "less than or equal to 1", "0.99"),
        ("learner.batch_size", 0, "greater than or equal to 1", "256"),
        ("learner.n_step", 1001, "less than or equal to 1000", "1"),
        ("learner.tau", 0, "greater than 0", "0.005"),
        ("learner.updates_per_step", 0, "greater than 0", "1.0"),
        ("learner.max_grad_norm", 0, "greater than 0", "None"),
        ("learner.random_steps", 1.5, "a valid integer", "25000"),
        ("learner.exploration.std.steps", -1, "greater than or equal to 0", "0"),
        ("learner.exploration.std.shape", "cubic", "'linear' or 'exponential'", "'linear'"),
        ("env.copies", 0, "greater than or equal to 1", "1"),
        ("env.frame_stack", 99, "less than or equal to 64", "1"),
        ("env.vector", "threads", "'sync', 'async' or 'envpool'", "'sync'"),
        ("env.max_episode_steps", 0, "greater than or equal to 1", "None"),
        ("replay.capacity", 0, "greater than or equal to 1", "1000000"),
        ("replay.capacity_bytes", 0, "greater than or equal to 1", "None"),
        ("evaluation.episodes", 0, "greater than or equal to 1", "10"),
        ("checkpoint.keep", 0, "greater than or equal to 1", "3"),
        ("log.every", 0, "greater than or equal to 1", "1000"),
        ("steps", 0, "greater than or equal to 1", "100000"),
        ("seed", 2**32, "less than 4294967296", "0"),
        ("device", "gpu", "auto|cpu|cuda", "'auto'"),
        ("threads", 0, "greater than or equal to 1 or be 'auto'", "'auto'"),
        ("compile", "maybe", "boolean, unable to interpret input or be 'auto'", "'auto'"),
        ("topology.actors", -1, "greater than or equal to 0 or be 'auto'", "'auto'"),
    ],
)
def test_refused_value_is_named_with_its_limit_and_default(key, value, limit, default):
    message = refusal({key: value})
    assert message.startswith(f"{key} = {value!r} is refused: it should ")
    assert limit in message
    assert message.endswith(f"; the default is {default}")


def test_refused_value_of_a_part_is_named_with_its_limit_and_default():
    message = refusal({"replay.sampler": {"name": "prioritized", "alpha": 5}})
    assert message == (
        "replay.sampler.alpha = 5 is refused: it should be less than or equal to 1; "
        "the default is 0.6"
    )


def test_refused_element_is_named_with_its_limit_and_default():
    message = refusal({"learner.hidden_sizes": [64, 0]})
    assert "greater than or equal to 1" in message
    assert "(256, 256)" in message


@pytest.mark.parametrize("algorithm", ["actor_critic", "npg", "ppo", "trpo", "vpg"])
def test_hidden_size_of_nothing_is_refused(algorithm):
    assert "hidden_sizes" in refusal({"learner.hidden_sizes": [0]}, algorithm)


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "td3"])
def test_hidden_size_of_nothing_is_refused_off_policy(algorithm):
    assert "hidden_sizes" in refusal({"learner.hidden_sizes": [0]}, algorithm)


def test_section_that_is_not_one_is_refused_in_words_of_the_user():
    assert "Pydantic" not in refusal({"replay": 5})


@pytest.mark.parametrize("value", [float("inf")])
def test_number_that_is_not_finite_is_refused(value):
    assert "updates_per_step" in refusal({"learner.updates_per_step": value})


def test_not_a_number_is_refused():
    assert refusal({"learner.lr": float("nan")}).startswith("learner.lr = nan is refused")


def test_missing_value_is_named_with_a_remedy():
    with pytest.raises(UsageError, match=r"env\.id is missing: .*--set env\.id="):
        RunConfig.from_yaml("env: {}\nlearners: {td3: {algorithm: td3}}")


def test_combination_that_cannot_be_is_refused_in_a_whole_sentence():
    message = refusal({"learner.double": True, "learner.target_network": False}, "dqn")
    assert message == (
        "learner.double needs two networks: set learner.target_network=true, "
        "or learner.double=false"
    )


def test_run_without_a_learner_is_refused():
    with pytest.raises(UsageError, match="a run needs at least one learner: give --algo"):
        RunConfig.from_yaml("env: {id: CartPole-v1}\nlearners: {}")


def test_learner_shorthand_that_holds_no_settings_is_refused():
    assert refusal({"learner": 5}).startswith("learner = 5 is refused")


def test_environment_may_be_a_bare_id_in_the_file(write):
    assert resolve(None, ["td3"], file=write("env: Pendulum-v1")).env.id == "Pendulum-v1"


def test_algorithm_that_is_not_a_name_is_refused_in_a_sentence(write):
    with pytest.raises(UsageError, match="algorithm"):
        resolve("CartPole-v1", [], file=write("learners: {a: {algorithm: 5}}"))


def test_settings_cannot_be_changed_afterwards():
    config = resolve("Pendulum-v1", ["td3"])
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 5  # type: ignore[misc]


# YAML and the command line


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_yaml_round_trip(algorithm):
    config = resolve(
        "Pendulum-v1",
        [algorithm],
        overrides={"learner.lr": 1e-5, "env.kwargs.g": 9.81, "replay.sampler": "prioritized"},
    )
    assert RunConfig.from_yaml(config.to_yaml()) == config


def test_yaml_round_trip_of_a_portfolio(write):
    config = resolve("Pendulum-v1", [], file=write(TWO_LEARNERS))
    assert RunConfig.from_yaml(config.to_yaml()) == config


def test_written_yaml_is_a_config_file_that_resolves_to_itself(write):
    config = resolve("Pendulum-v1", ["td3"], overrides={"learner.exploration.std.start": 0.3})
    assert resolve(None, [], file=write(config.to_yaml())) == config


def test_file_that_is_not_yaml_is_refused_with_its_name(write):
    with pytest.raises(UsageError, match=r"run\.yaml is not YAML"):
        resolve("Pendulum-v1", ["td3"], file=write("learner: ["))


@pytest.mark.parametrize("text", ["- a\n- b", "", "just words"])
def test_file_that_holds_no_mapping_is_refused(write, text):
    with pytest.raises(UsageError, match="must hold a mapping"):
        resolve("Pendulum-v1", ["td3"], file=write(text))


def test_file_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read config file .*No such file"):
        resolve("Pendulum-v1", ["td3"], file=tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("text", ["]", "", "5"])
def test_stored_yaml_that_is_damaged_is_refused_in_a_sentence(text):
    with pytest.raises(UsageError):
        RunConfig.from_yaml(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=1e-3", 1e-3),
        ("a.b=1e6", 1e6),
        ("a.b=-2", -2),
        ("a.b=3.5", 3.5),
        ("a.b=true", True),
        ("a.b=null", None),
        ("a.b=CartPole-v1", "CartPole-v1"),
        ("a.b=[64, 64]", [64, 64]),
        ("a.b={name: gaussian, std: {start: 0.2}}", {"name": "gaussian", "std": {"start": 0.2}}),
        ("a.b='7'", "7"),
        ("a.b=x=y", "x=y"),
        (" a.b =1", 1),
    ],
)
def test_assignment_is_read_as_yaml_with_numbers(text, value):
    assert parse_assignment(text) == ("a.b", value)


@pytest.mark.parametrize("text", ["learner.lr", "=3", " =3"])
def test_text_that_is_no_assignment_is_refused(text):
    with pytest.raises(UsageError, match="is not an assignment: write it as key=value"):
        parse_assignment(text)


def test_assignment_of_broken_yaml_is_refused():
    with pytest.raises(UsageError, match="cannot be read as YAML"):
        parse_assignment("learner.hidden_sizes=[64")


def test_scientific_notation_reaches_whole_and_broken_numbers():
    overrides = dict(map(parse_assignment, ["steps=1e6", "learner.lr=1e-3"]))
    config = resolve("Pendulum-v1", ["td3"], overrides=overrides)
    assert config.steps == 1_000_000
    assert isinstance(config.steps, int)
    assert config.learners["td3"].lr == 1e-3


def test_scientific_notation_in_a_file_reaches_broken_numbers(write):
    config = resolve("Pendulum-v1", ["td3"], file=write("learner: {lr: 1e-3}"))
    assert config.learners["td3"].lr == 1e-3


def test_scientific_notation_in_a_file_reaches_whole_numbers(write):
    assert resolve("Pendulum-v1", ["td3"], file=write("steps: 1e6")).steps == 1_000_000


def test_bytes_may_be_written_in_scientific_notation(write):
    file = write("replay: {capacity_bytes: 8e9}")
    assert resolve("Pendulum-v1", ["td3"], file=file).replay.capacity_bytes == 8_000_000_000


# Every field is read


def settings_classes() -> set[type[Settings]]:
    for kind, names in SHORT_NAMES.items():
        for name in names:
            lookup(kind, name)
    found, waiting = set(), [Settings]
    while waiting:
        for child in waiting.pop().__subclasses__():
            found.add(child)
            waiting.append(child)
    return {child for child in found if child.__module__.partition(".")[0] in PACKAGES}


def is_validator(node: ast.AST) -> bool:
    """Whether this is a method that merely checks settings: reading there is not using."""
    return isinstance(node, ast.FunctionDef) and any(
        "validator" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def attributes_read(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Every `receiver.attribute` that is read; of `self._config.log.every` it is (log, every)."""
    if is_validator(node):
        return
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        receiver = ast.unparse(node.value).rpartition(".")[2].strip("_")
        yield receiver, node.attr
    for child in ast.iter_child_nodes(node):
        yield from attributes_read(child)


def reads_of_all_packages() -> set[tuple[str, str]]:
    reads: set[tuple[str, str]] = set()
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            for path in Path(folder).rglob("*.py"):
                reads.update(attributes_read(ast.parse(path.read_text())))
    return reads


SECTIONS = {
    field.annotation: name
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
}


def is_read(settings: type[Settings], field: str, reads: set[tuple[str, str]]) -> bool:
    """Whether something that can be these settings is asked for the field.

    That is the section's name (`log.every`), a `...config`, or the settings themselves. A field
    that several sections have (`every`) must be read of the section by name.
    """
    section = SECTIONS.get(settings)
    receivers = {receiver for receiver, attribute in reads if attribute == field}
    if settings.__module__ == inventory.__name__:  # in many hands, the Helm chart's among them
        return bool(receivers) or f".Values.inventory.{field} " in chart()
    if section is not None and sum(field in other.model_fields for other in SECTIONS) > 1:
        return section in receivers
    return section in receivers or any(
        receiver == "self" or receiver.endswith("config") for receiver in receivers
    )


def chart() -> str:
    folder = Path(__file__).parents[2] / "deploy" / "helm" / "repertory" / "templates"
    return "".join(path.read_text() for path in sorted(folder.iterdir()))


def test_every_setting_is_read_somewhere():
    reads = reads_of_all_packages()
    unread = sorted(
        f"{settings.__module__}.{settings.__qualname__}.{field}"
        for settings in settings_classes()
        for field in settings.__annotations__
        if field in settings.model_fields and not is_read(settings, field, reads)
    )
    assert unread == []
