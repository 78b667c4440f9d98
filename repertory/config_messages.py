"""What is wrong with settings, in one sentence: the value, the limit, the nearest known key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, get_args, get_origin

from pydantic import ValidationError

from repertory.parts import lookup
from repertory.settings import PartSettings, Settings


def explain(
    error: ValidationError,
    document: Any,
    root: type[Settings],
    remedy: str = "give it a value with --set {key}=...",
) -> str:
    """One sentence for the first problem of a validation error."""
    detail = error.errors()[0]
    path, document_here = list(detail["loc"]), value_at(document, detail["loc"])
    inner = detail.get("ctx", {}).get("error")
    while isinstance(inner, ValidationError):  # a part's own settings, validated inside ours
        detail = inner.errors()[0]
        path += list(detail["loc"])
        document_here = value_at(document_here, detail["loc"])
        inner = detail.get("ctx", {}).get("error")
    others: list[str] = []
    if _is_alternative(error.errors()[0]["loc"], document):  # `int | Literal["auto"]`
        path = path[:-1]
        alternatives = [one for one in error.errors() if list(one["loc"][:-1]) == path]
        others = [re.sub("^Input should ", " or ", one["msg"]) for one in alternatives[1:]]
    key = _spoken(path)
    if detail["type"] == "extra_forbidden":
        return _unknown(path, document, document_here, root)
    if detail["type"] == "missing":
        return f"{key} is missing: {remedy.format(key=key)}"
    if detail["type"] == "value_error":  # one of our own validators: a whole sentence
        return detail["msg"].removeprefix("Value error, ")
    message = re.sub(r"^(Input|String|Tuple|List|Value) ", "", detail["msg"]) + "".join(others)
    return f"{key} = {document_here!r} is refused: it {message}{_default_of(path, document, root)}"


def _is_alternative(path: Sequence[Any], document: Any) -> bool:
    """Whether the last of it names one of several types that a value may have, not a place."""
    return len(path) > 1 and not isinstance(value_at(document, path[:-1]), Mapping | list | tuple)


def _spoken(path: Sequence[Any]) -> str:
    """The way users write a place: learners.td3.lr of a single learner is learner.lr."""
    parts = [str(part) for part in path]
    if len(parts) >= 2 and parts[0] == "learners":
        parts = ["learner", *parts[2:]]
    return ".".join(parts)


def value_at(document: Any, path: Sequence[Any]) -> Any:
    for part in path:
        if isinstance(document, Mapping):
            document = document.get(part)
        elif isinstance(document, (list, tuple)) and isinstance(part, int):
            document = document[part] if part < len(document) else None
    return document


def _holder_of(path: Sequence[Any], document: Any, root: type[Settings]) -> type[Settings] | None:
    """The settings class that holds the last key of `path`."""
    current = root
    is_name = False  # of an entry in a mapping of settings
    for depth, part in enumerate(path[:-1]):
        if is_name:
            is_name = False
            continue
        if path[0] == "learners" and depth == 0:
            continue
        here = value_at(document, path[: depth + 1])
        if path[0] == "learners" and depth == 1:
            current = lookup("algorithm", here["algorithm"]).Config
            continue
        field = current.model_fields.get(str(part))
        if field is None:
            return None
        if isinstance(field.default, PartSettings) or (isinstance(here, dict) and "name" in here):
            kind: Any = part  # a part's field carries the name of its kind
            current = lookup(kind, here["name"]).Config
        elif _is_settings(field.annotation):
            current = field.annotation
        elif (
            get_origin(field.annotation) is dict
            and _is_settings(values := get_args(field.annotation)[1])
        ) or (
            get_origin(field.annotation) is tuple
            and _is_settings(values := get_args(field.annotation)[0])
        ):
            current, is_name = values, True
        else:
            return None
    return current


def _is_settings(annotation: Any) -> TypeGuard[type[Settings]]:
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def _unknown(path: Sequence[Any], document: Any, value: Any, root: type[Settings]) -> str:
    """Names an unknown key, in full where it holds a single setting, and the nearest known one."""
    rest: list[Any] = []
    while isinstance(value, Mapping) and len(value) == 1:
        name, value = next(iter(value.items()))
        rest.append(name)
    key = _spoken([*path, *rest])
    holder = _holder_of(path, document, root)
    names = list(holder.model_fields) if holder is not None else []
    if holder is root and "learners" in names:
        names.append("learner")
    close = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.5)
    if close:
        return f"{key} is not a setting: did you mean {_spoken([*path[:-1], close[0], *rest])}?"
    known = f": the settings here are {', '.join(sorted(names))}" if names else ""
    return f"{key} is not a setting{known}"


def _default_of(path: Sequence[Any], document: Any, root: type[Settings]) -> str:
    names = list(path)
    while names and isinstance(names[-1], int):  # an element has no default, its field has
        names.pop()
    holder = _holder_of(names, document, root) if names else None
    field = holder.model_fields.get(str(names[-1])) if holder is not None else None
    if field is None or field.is_required() or field.default_factory is not None:
        return ""
    return f"; the default is {field.default!r}"
