"""Exactly which packages a cluster's machines have: those that this one has.

Ray and torch want the same versions on all sides. The lock is what is installed here of all that
the project needs, so it is always what was tried.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping

from packaging.requirements import Requirement

PROJECT = "repertory"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def public(version: str) -> str:
    """Without what says for which hardware it was built: torch has one for each kind of GPU."""
    return version.partition("+")[0]


def lock(extras: Iterable[str] = ()) -> dict[str, str]:
    """Package -> version, of everything the project needs, itself not included."""
    found: dict[str, str] = {}
    wanted = [(PROJECT, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        name, of_extras = wanted.pop()
        if (name, of_extras) in seen:
            continue
        seen.add((name, of_extras))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system, or of an extra that is not installed here
        if name != PROJECT:
            found[canonical(name)] = public(distribution.version)
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in (*of_extras, "")
            ):
                wanted.append((canonical(requirement.name), frozenset(requirement.extras)))
    return dict(sorted(found.items()))


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """In words, each package that is missing there or another one."""
    return [
        f"{name} {public(theirs[name])} there, {version} here"
        if name in theirs
        else f"{name} {version} is missing"
        for name, version in ours.items()
        if public(theirs.get(name, "")) != version
    ]


def as_constraints(packages: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in packages.items())
