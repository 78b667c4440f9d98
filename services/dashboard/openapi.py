"""The OpenAPI description of the JSON interface, from the endpoints themselves."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from services.dashboard.endpoint import Endpoint
from services.dashboard.schemas import Problem

REFERENCE = "#/components/schemas/{model}"
ERRORS = {
    "400": "The request could not be read",
    "401": "No token",
    "403": "Another site's page, or a dashboard that is read-only",
    "404": "No such run, process or file",
    "409": "The run refused, or did not answer",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "422": "A value is wrong; the answer says which",
}


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    models: set[type[BaseModel]] = {Problem}
    for one in endpoints:
        models |= {model for model in (one.answer, one.body) if isinstance(model, type)}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in ordered], ref_template=REFERENCE
    )
    paths: dict[str, Any] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Repertory's dashboard",
            "version": importlib.metadata.version("repertory"),
        },
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": f"{endpoint.method.lower()}_{endpoint.handler.__name__}",
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)}", endpoint.path)
            ),
            *_query_parameters(endpoint.query),
        ],
        "responses": {
            "200": {"description": "As asked", "content": _content(endpoint.answer)},
            **{
                status: {"description": text, "content": _content(Problem)}
                for status, text in ERRORS.items()
            },
        },
    }
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(endpoint.body)}
    return operation


def _query_parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    schema = model.model_json_schema()
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _plain(one)}
        for name, one in schema.get("properties", {}).items()
    ]


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """What may be left out cannot be said to be nothing: there is no null in a query."""
    alternatives = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(alternatives) == 1:
        return alternatives[0]
    return {name: value for name, value in schema.items() if name != "title"}


def _content(answer: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(answer, str):
        binary = {"type": "string", "format": "binary"}
        return {media_type: {"schema": binary} for media_type in (answer, "image/gif")}
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=answer.__name__)}}}
