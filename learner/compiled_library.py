"""A compiled step as Inductor writes it: a shared library, called without Python's lock.

Torch's own runner for these libraries keeps the lock for as long as a call takes, so that no other
thread of the process gets to run meanwhile: neither one that receives the next batches nor one that
computes another part of this batch. Their C interface (`aoti_runtime/interface.h`) called by
`ctypes` does not.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import c_char_p, c_int32, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from learner.helper_threads import Call
from repertory.errors import RepertoryError

_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_capsule_of = ctypes.pythonapi.PyCapsule_New
_capsule_of.restype, _capsule_of.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]


class LibraryError(RepertoryError):
    """A compiled step that cannot be loaded, or that refuses what it was called with."""


@dataclass(frozen=True)
class PreparedCall:
    call: Call
    inputs: ctypes.Array[c_void_p]  # kept for as long as the call points there
    outputs: ctypes.Array[c_void_p]


class CompiledLibrary:
    """Called with tensors of the shapes it was compiled for; changes those that it was told to.

    `callers`: how many threads call it at the same time.
    """

    def __init__(self, path: Path, callers: int = 1) -> None:
        self._path = path
        try:
            self._library = ctypes.CDLL(str(path))
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
        self._run = self._library.AOTInductorModelContainerRun
        self._run.restype = c_int32
        self._run.argtypes = [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p]
        self._outputs = c_void_p * outputs.value

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        prepared = self.prepare(tensors)
        call = prepared.call
        code = self._run(
            call.container,
            call.inputs,
            call.input_count,
            call.outputs,
            call.output_count,
            None,
            None,
        )
        return self.results(prepared, code)

    def prepare(self, tensors: Sequence[Tensor]) -> PreparedCall:
        """A call that is made once, by whoever."""
        # Handles are the library's from there on; the tensors behind them stay ours.
        handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([*tensors])
        inputs = (c_void_p * len(handles))(*[_pointer_in(handle, None) for handle in handles])
        outputs = self._outputs()
        call = Call(
            ctypes.cast(self._run, c_void_p),
            self._container,
            ctypes.addressof(inputs),
            len(inputs),
            ctypes.addressof(outputs),
            len(outputs),
        )
        return PreparedCall(call, inputs, outputs)

    def results(self, made: PreparedCall, code: int) -> list[Tensor]:
        self._check(code)
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
