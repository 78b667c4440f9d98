"""Checkpoints on disk: written whole or not at all, checksummed, the last N kept.

A checkpoint is a folder of sections. Each section is a tree (nested dicts) whose arrays go to
`NAME.safetensors` and whose other values go to `NAME.json`; `manifest.json` holds the size and
checksum of every file. The folder is written under a temporary name, synced and renamed, so that
its name alone says that it is complete. Nothing is ever pickled.

An array may be a `StreamedArray`, which is made while it is written. Sections are written in their
order, so what is only known at the end belongs into the last one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from repertory.array_files import StreamedArray, WrittenFile, map_arrays, write_arrays
from repertory.errors import CheckpointError
from repertory.types import Array

logger = logging.getLogger(__name__)

FORMAT = 1
ARRAY_MARK = "__array__"
Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose checksums were found right."""

    path: Path
    env_steps: int

    def load(self, section: str, *, mapped: bool = False) -> dict[str, Any]:
        """With `mapped` arrays are read-only, and read from the file when they are looked at."""
        if not self.has(section):
            raise CheckpointError(
                f"{self.path} has nothing of {section!r}: it was written by another kind of run, "
                "or by another version"
            )
        document = json.loads((self.path / f"{section}.json").read_text())
        file = self.path / f"{section}.safetensors"
        arrays = map_arrays(file) if mapped else load_file(file)
        tree: dict[str, Any] = _join(document, arrays)
        return tree

    def has(self, section: str) -> bool:
        return (self.path / f"{section}.json").exists()


class CheckpointStore:
    """The checkpoints of one run, under one folder."""

    def __init__(self, directory: Path, keep: int = 3) -> None:
        self._directory = directory
        self._keep = keep

    def save(self, env_steps: int, sections: Mapping[str, Tree], name: str | None = None) -> Path:
        """Writes a checkpoint and removes those beyond the last N; a named one stands apart."""
        final = self._directory / (name or f"step_{env_steps:012d}")
        temporary = self._directory / f".{final.name}.tmp"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            files: dict[str, WrittenFile] = {}
            for section, tree in sections.items():
                arrays: dict[str, Array | StreamedArray] = {}
                document = json.dumps(_split(tree, section, arrays)).encode()
                name_of_arrays, name_of_rest = f"{section}.safetensors", f"{section}.json"
                files[name_of_arrays] = write_arrays(temporary / name_of_arrays, arrays)
                files[name_of_rest] = _write(temporary / name_of_rest, document)
            _write_manifest(temporary, env_steps, files)
            _sync(temporary)
            _replace_directory(temporary, final)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(
                f"cannot write checkpoint {final}: {error}; the one before is kept"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if name is None:
            self._remove_old()
        return final

    def paths(self) -> list[Path]:
        """Newest first; what is in them has not been looked at."""
        return sorted(self._directory.glob("step_*"), reverse=True)

    def newest_valid(self) -> Checkpoint:
        """The newest checkpoint that is whole; each corrupt one is refused by name."""
        refused = []
        for path in self.paths():
            try:
                return verify(path)
            except CheckpointError as error:
                logger.warning("%s; the one before is used", error)
                refused.append(path.name)
        if refused:
            raise CheckpointError(
                f"none of the checkpoints in {self._directory} is whole: {', '.join(refused)}"
            )
        raise CheckpointError(f"there is no checkpoint in {self._directory}")

    def named(self, name: str) -> Checkpoint:
        path = self._directory / name
        if not path.is_dir():
            raise CheckpointError(f"there is no checkpoint {path}")
        return verify(path)

    def _remove_old(self) -> None:
        for path in self.paths()[self._keep :]:
            shutil.rmtree(path, ignore_errors=True)


def verify(path: Path) -> Checkpoint:
    """Checks every file of a checkpoint against its manifest."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {manifest['format']}, this version reads {FORMAT}"
            )
        for name, expected in manifest["files"].items():
            file = path / name
            if file.stat().st_size != expected["bytes"] or _digest(file) != expected["sha256"]:
                raise CheckpointError(f"checkpoint {path} is corrupt: {name} fails its checksum")
        return Checkpoint(path, manifest["env_steps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} is corrupt or incomplete: {error}") from error


def _write_manifest(directory: Path, env_steps: int, files: Mapping[str, WrittenFile]) -> None:
    manifest = {
        "format": FORMAT,
        "env_steps": env_steps,
        "files": {
            name: {"bytes": file.nbytes, "sha256": file.sha256}
            for name, file in sorted(files.items())
        },
    }
    _write(directory / "manifest.json", json.dumps(manifest, indent=1).encode())


def _write(path: Path, data: bytes) -> WrittenFile:
    path.write_bytes(data)
    _sync(path)
    return WrittenFile(len(data), hashlib.sha256(data).hexdigest())


def _replace_directory(temporary: Path, final: Path) -> None:
    """A rename cannot replace a folder that has something in it, so the old one steps aside."""
    aside = final.with_name(f".{final.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(final, aside)
    os.replace(temporary, final)
    _sync(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def write_atomically(path: Path, data: bytes) -> None:
    """The whole file or the one before."""
    temporary = path.with_name(f".{path.name}.tmp")
    _write(temporary, data)
    os.replace(temporary, path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _split(tree: Any, path: str, arrays: dict[str, Array | StreamedArray]) -> Any:
    """Takes the arrays out of a tree; a mark with their name stays in their place."""
    if isinstance(tree, StreamedArray):
        arrays[path] = tree
        return {ARRAY_MARK: path}
    if isinstance(tree, np.ndarray):
        arrays[path] = np.asarray(tree, order="C")
        return {ARRAY_MARK: path}
    if isinstance(tree, Mapping):
        return {key: _split(value, f"{path}.{key}", arrays) for key, value in tree.items()}
    return tree


def _join(document: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(document, dict):
        if document.keys() == {ARRAY_MARK}:
            return arrays[document[ARRAY_MARK]]
        return {key: _join(value, arrays) for key, value in document.items()}
    return document
