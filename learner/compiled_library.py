"""A compiled step as Inductor writes it: a shared library, called without Python's lock.

Torch's own runner for these libraries keeps the lock for as long as a call takes, so that no other
thread of the process gets to run meanwhile: neither one that receives the next batches nor one that
computes another part of this batch. Their C interface (`aoti_runtime/interface.h`) called by
`ctypes` does not.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Sequence
from ctypes import c_char_p, c_int32, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learner import calls
from learner.calls import Call
from repertory.errors import RepertoryError

Handles = ctypes.Array[c_void_p]

_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_capsule_of = ctypes.pythonapi.PyCapsule_New
_capsule_of.restype, _capsule_of.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]


class LibraryError(RepertoryError):
    """A compiled step that cannot be loaded, or that refuses what it was called with."""


@dataclass(frozen=True)
class PreparedCall:
    """To be made once, by whoever; it has all that the call points to."""

    call: Call
    given: Handles
    outputs: Handles


class CompiledLibrary:
    """Called with tensors of the shapes it was compiled for; changes those that it was told to.

    The first `kept` of them are mostly the same from call to call: a learner's state. `callers`:
    how many threads call it at the same time.
    """

    def __init__(self, path: Path, kept: int = 0, callers: int = 1) -> None:
        self._path = path
        try:
            self._library = ctypes.CDLL(str(path))
            self._calls = calls.load(path.parent)
        except OSError as error:
            raise LibraryError(f"{path} cannot be loaded: {error}") from error
        create = self._library.AOTInductorModelContainerCreateWithDevice
        create.argtypes = [c_void_p, c_size_t, c_char_p, c_char_p]
        self._container = c_void_p()
        self._check(create(ctypes.byref(self._container), callers, b"cpu", None))
        delete = self._library.AOTInductorModelContainerDelete
        weakref.finalize(self, delete, self._container)
        outputs = c_size_t()
        count = self._library.AOTInductorModelContainerGetNumOutputs
        self._check(count(self._container, ctypes.byref(outputs)))
        self._outputs = c_void_p * outputs.value
        run = self._library.AOTInductorModelContainerRun
        run.restype = c_int32
        self._run = ctypes.cast(run, c_void_p)
        self._new_handle = ctypes.cast(_torch().aoti_torch_new_tensor_handle, c_void_p)
        self._kept_count = kept
        self._kept: KeptTensors | None = None

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        prepared = self.prepare(tensors)
        self._calls.call_make(ctypes.byref(prepared.call))
        return self.results(prepared)

    def prepare(self, tensors: Sequence[Tensor]) -> PreparedCall:
        first = tensors[: self._kept_count]
        if self._kept is None or not self._kept.has(first):
            self._kept = KeptTensors(first)
        given, outputs = _handles(tensors[self._kept_count :]), self._outputs()
        call = Call(
            self._run,
            self._new_handle,
            self._container,
            ctypes.addressof(self._kept.handles),
            len(self._kept.handles),
            ctypes.addressof(given),
            len(given),
            ctypes.addressof(outputs),
            len(outputs),
        )
        return PreparedCall(call, given, outputs)

    def results(self, made: PreparedCall) -> list[Tensor]:
        self._check(made.call.code)
        tensors: list[Tensor] = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(
            [_capsule_of(output, None, None) for output in made.outputs]
        )
        return tensors

    def _check(self, code: int) -> None:
        if code != 0:
            reason = c_char_p()  # of this thread's last call
            self._library.AOTInductorGetLastError(ctypes.byref(reason))
            said = (reason.value or b"it refused what it was called with").decode(errors="replace")
            raise LibraryError(f"{self._path}: {said}")


class KeptTensors:
    """Handles of tensors that are given again and again: Python makes them once."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._ids = [id(tensor) for tensor in tensors]  # nobody else's while they are kept
        self.handles = _handles(tensors)
        weakref.finalize(self, _delete, self.handles)

    def has(self, tensors: Sequence[Tensor]) -> bool:
        return [id(tensor) for tensor in tensors] == self._ids


def _handles(tensors: Sequence[Tensor]) -> Handles:
    """New ones: whoever gets them deletes them; the tensors stay ours."""
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([*tensors])
    return (c_void_p * len(capsules))(*[_pointer_in(capsule, None) for capsule in capsules])


def _delete(handles: Handles) -> None:
    for handle in handles:
        _torch().aoti_torch_delete_tensor_object(c_void_p(handle))


def _torch() -> Any:
    """Torch's own library, which is loaded already."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}"))
