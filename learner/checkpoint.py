"""A learner's state as a tree of arrays, and back: no algorithm writes its own saving code.

Every field of the state dataclass is saved by its type: networks and targets with their buffers,
optimisers with their moments, generators, parameters, counters. A resumed learner's next update is
equal to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learner.adam import Adam
from repertory.errors import CheckpointError


def state_tree(state: Any) -> dict[str, Any]:
    return {field.name: _save(getattr(state, field.name), field.name) for field in fields(state)}


def load_state_tree(state: Any, tree: Mapping[str, Any]) -> None:
    """Restores `state` in place; it must have been made by the same algorithm and settings."""
    names = {field.name for field in fields(state)}
    if names != set(tree):
        raise CheckpointError(
            f"the checkpoint holds {sorted(tree)}, this learner has {sorted(names)}: "
            "it was written by another algorithm"
        )
    for name in names:
        value = getattr(state, name)
        if isinstance(value, int | float):
            setattr(state, name, tree[name])
        else:
            _load(value, tree[name], name)


def _save(value: Any, name: str) -> Any:
    if isinstance(value, nn.Module):
        return {key: _array(tensor) for key, tensor in value.state_dict().items()}
    if isinstance(value, Adam):
        return {
            index: {key: _array(tensor) for key, tensor in slots.items()}
            for index, slots in value.state().items()
        }
    if isinstance(value, torch.Generator):
        return _array(value.get_state())
    if isinstance(value, Tensor):
        return _array(value)
    if isinstance(value, int | float):
        return value
    raise TypeError(f"cannot save the field {name} of type {type(value).__name__}")


def _load(value: Any, saved: Any, name: str) -> None:
    try:
        if isinstance(value, nn.Module):
            value.load_state_dict({key: torch.from_numpy(array) for key, array in saved.items()})
        elif isinstance(value, Adam):
            value.load_state(saved)  # its settings are those of the run, which may have changed
        elif isinstance(value, torch.Generator):
            value.set_state(torch.from_numpy(saved))
        else:
            with torch.no_grad():
                value.copy_(torch.from_numpy(saved))
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the saved {name} does not fit this learner: {reason}") from None


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()
