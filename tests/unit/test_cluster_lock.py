"""The lock: what is installed here of all that the project needs."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from services.clusters.lock import as_constraints, canonical, differences, lock, public


@pytest.fixture(scope="module")
def ours() -> dict[str, str]:
    return lock()


def test_it_has_the_versions_that_are_installed_here(ours: dict[str, str]) -> None:
    for name in ("ray", "torch", "numpy", "redis", "pydantic-core"):
        assert ours[name] == public(importlib.metadata.version(name))


def test_the_project_itself_is_not_in_it(ours: dict[str, str]) -> None:
    assert "repertory" not in ours


def test_whatever_a_package_in_it_needs_is_in_it_too(ours: dict[str, str]) -> None:
    missing = [
        (name, requirement.name)
        for name in ours
        for text in importlib.metadata.distribution(name).requires or ()
        if (requirement := Requirement(text)).marker is None
        or requirement.marker.evaluate({"extra": ""})
        if canonical(requirement.name) not in ours
    ]
    assert missing == []


def test_an_extra_brings_its_packages(ours: dict[str, str]) -> None:
    more = lock(["dev"])
    assert "pytest" in more.keys() - ours.keys()
    assert ours.items() <= more.items()


def test_an_extra_that_is_unknown_changes_nothing(ours: dict[str, str]) -> None:
    assert lock(["no-such-extra"]) == ours


def test_it_is_in_order(ours: dict[str, str]) -> None:
    assert list(ours) == sorted(ours)


REQUIRED = {
    "repertory": ["Server[tls]", "nowhere", "for-them; sys_platform == 'no-such-system'"],
    "server": ["crypto-lib; extra == 'tls'", "colours; extra == 'pretty'", "repertory"],
    "crypto-lib": ["server"],
    "colours": [],
    "for-them": [],
}


def test_extras_of_what_is_needed_count_and_other_systems_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def distribution(name: str) -> SimpleNamespace:
        if name not in REQUIRED:
            raise importlib.metadata.PackageNotFoundError(name)
        return SimpleNamespace(version="1.0+local", requires=REQUIRED[name])

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    assert lock() == {"crypto-lib": "1.0", "server": "1.0"}


@pytest.mark.parametrize("name", ["Foo.Bar", "foo_bar", "FOO--bar", "foo-bar"])
def test_a_package_has_one_name_however_it_is_written(name: str) -> None:
    assert canonical(name) == "foo-bar"


def test_the_hardware_it_was_built_for_does_not_count() -> None:
    assert public("2.8.0+cu128") == public("2.8.0+cpu") == "2.8.0"
    assert differences({"torch": "2.8.0"}, {"torch": "2.8.0+cu128"}) == []


def test_differences_are_told_in_words() -> None:
    ours = {"numpy": "2.3.1", "ray": "2.49.0", "torch": "2.8.0"}
    theirs = {"numpy": "2.3.1", "ray": "2.48.0+local", "more": "1"}
    assert differences(ours, theirs) == [
        "ray 2.48.0 there, 2.49.0 here",
        "torch 2.8.0 is missing",
    ]


def test_pip_can_read_it(ours: dict[str, str]) -> None:
    requirements = [Requirement(line) for line in as_constraints(ours).splitlines()]
    assert {one.name: str(one.specifier) for one in requirements} == {
        name: f"=={version}" for name, version in ours.items()
    }
