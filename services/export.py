"""Takes a policy out of a run: safetensors for the weights, a JSON card for all the rest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from repertory.errors import RepertoryError
from repertory.policies.card import PolicyCard
from services.run_policy import load_card


def export_safetensors(run_dir: Path, which: str, output: Path) -> list[Path]:
    """Writes `policy.safetensors` and `policy.json` into the folder `output`.

    Observation and reward statistics are among the weights, action bounds are in the card's spec,
    so the two files are enough to act; `repertory.api.load_policy(output)` does.
    """
    card = load_card(run_dir, which)
    weights, description = output / "policy.safetensors", output / "policy.json"
    try:
        output.mkdir(parents=True, exist_ok=True)
        arrays = {name: np.asarray(a, order="C") for name, a in card.snapshot.arrays.items()}
        save_file(arrays, weights, metadata={"policy": card.snapshot.policy})
        description.write_text(json.dumps(card.description(), indent=1) + "\n")
    except OSError as error:
        raise RepertoryError(f"cannot write to {output}: {error.strerror or error}") from error
    return [weights, description]


def load_export(output: Path) -> PolicyCard:
    from safetensors.numpy import load_file

    try:
        description = json.loads((output / "policy.json").read_text())
        arrays = load_file(output / "policy.safetensors")
    except (OSError, ValueError) as error:
        raise RepertoryError(f"{output} is not an exported policy: {error}") from error
    card = PolicyCard.from_tree({**description, "weights": arrays})
    if card.snapshot.checksum != description["checksum"]:
        raise RepertoryError(f"{output}: the weights do not match the card's checksum")
    return card
