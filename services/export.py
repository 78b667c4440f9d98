"""Takes policies out of a run: safetensors for the weights, a JSON card for all the rest.

A single policy is `policy.safetensors` and `policy.json`; an ensemble has one safetensors file for
each member and `ensemble.json`. A folder holds one or the other, so that what is in it is plain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from repertory.errors import RepertoryError, UsageError
from repertory.policies.card import PolicyCard
from services.ensemble import Ensemble, Mode
from services.final_director import FinalDirector
from services.run_policy import load_playable

POLICY, ENSEMBLE = "policy.json", "ensemble.json"


def export_safetensors(
    run_dir: Path, which: str, output: Path, mode: Mode | None = None
) -> list[Path]:
    """Writes weights and card into the folder `output`; returns what was written.

    Observation and reward statistics are among the weights, action bounds are in the card's spec,
    and an ensemble's card has the whole director, so that the folder is enough to act;
    `repertory.api.load_policy(output)` does.
    """
    found = load_playable(run_dir, which, mode)
    card, other = (POLICY, ENSEMBLE) if isinstance(found, PolicyCard) else (ENSEMBLE, POLICY)
    if (output / other).exists():
        raise UsageError(
            f"{output} holds an exported {Path(other).stem} already: choose another --out"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
        if isinstance(found, PolicyCard):
            weights = [_save_weights(found, output / "policy.safetensors")]
            document = found.description()
        else:
            weights = [
                _save_weights(member, output / _weights_of(name))
                for name, member in found.members.items()
            ]
            document = _ensemble_document(found)
        (output / card).write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise RepertoryError(f"cannot write to {output}: {error.strerror or error}") from error
    return [*weights, output / card]


def is_export(path: Path) -> bool:
    return (path / POLICY).exists() or (path / ENSEMBLE).exists()


def load_export(output: Path, mode: Mode | None = None, seed: int = 0) -> PolicyCard | Ensemble:
    """An ensemble acts as it was exported to, unless another `mode` is asked for."""
    if not (output / ENSEMBLE).exists():
        if mode is not None:
            raise UsageError(f"{output} holds a single policy: it cannot act by {mode}")
        return _load_card(output / "policy.safetensors", _read(output / POLICY))
    document = _read(output / ENSEMBLE)
    try:
        director = document["director"]
        ensemble = Ensemble(
            members={
                name: _load_card(output / _weights_of(name), description)
                for name, description in document["members"].items()
            },
            mode=document["mode"],
            director=None if director is None else FinalDirector.from_json(director),
            env_steps=document["env_steps"],
            seed=seed,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RepertoryError(f"{output} is not an exported ensemble: {error!r}") from error
    return ensemble if mode is None else replace(ensemble, mode=mode)


def _ensemble_document(ensemble: Ensemble) -> dict[str, Any]:
    director = ensemble.director
    return {
        "mode": ensemble.mode,
        "env_steps": ensemble.env_steps,
        "members": {
            name: {**card.description(), "weights": _weights_of(name)}
            for name, card in ensemble.members.items()
        },
        # The report is for people: shares, estimates, regret; state and config are to act by.
        "director": None
        if director is None
        else {"report": director.report(), **director.to_json()},
    }


def _weights_of(name: str) -> str:
    return f"{name}.safetensors"


def _save_weights(card: PolicyCard, path: Path) -> Path:
    arrays = {name: np.asarray(a, order="C") for name, a in card.snapshot.arrays.items()}
    save_file(arrays, path, metadata={"policy": card.snapshot.policy})
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RepertoryError(f"{path.parent} is not an exported policy: {error}") from error
    return document


def _load_card(weights: Path, description: Mapping[str, Any]) -> PolicyCard:
    try:
        arrays = load_file(weights)
    except Exception as error:  # safetensors has an error of its own for each kind of damage
        raise RepertoryError(f"{weights} cannot be read: {error}") from error
    card = PolicyCard.from_tree({**description, "weights": arrays})
    if card.snapshot.checksum != description["checksum"]:
        raise RepertoryError(f"{weights}: the weights do not match the card's checksum")
    return card
