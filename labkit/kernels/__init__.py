"""Compiled kernels: `kernel` for those that Python calls, `inner` for those that mostly kernels call.

Each is compiled when it is first called, and kept where other processes and users find it (`labkit.kernels.store`).
Columns that go from kernel to kernel together are a NamedTuple that is marked `by_reference`: a kernel gets one pointer
then, in place of seven numbers for each array, which is what most of the time of compiling went into.

>>> @kernel
... def twice(x):
...     return 2 * x
>>> twice(21)
42
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

import numba
from numba.core import types
from numba.core.registry import CPUDispatcher
from numba.core.target_extension import cpu_target, jit_registry

from labkit.kernels.columns import by_reference
from labkit.kernels.compiler import InnerCompiler, KernelCompiler
from labkit.kernels.store import Cache

__all__ = ["by_reference", "inner", "kernel"]

F = TypeVar("F", bound=Callable[..., Any])
FLOAT: Final = ("float", float)
"""How a parameter is declared as a floating-point number, with annotations as text or not."""


class _Kernel(CPUDispatcher):
    """A kernel that is compiled once for all numbers that it may be called with.

    numba would compile it for each constant, and for each size of an integer, among its arguments, and again where
    Python passes 3600 for a parameter that is declared as `float`.
    """

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the function that a call from another kernel resolves to."""
        return super().get_call_template(tuple(map(_plain, args)), {name: _plain(kind) for name, kind in kws.items()})

    def compile(self, sig: Any) -> Any:
        """Compile it for the kinds of numbers that its parameters are declared as, whatever came first."""
        if not isinstance(sig, tuple) or (declared := self._declared(sig)) == sig:
            return self._compile(sig)
        entry = self._compile(declared)
        self._insert([kind._code for kind in sig], entry, False)  # the next such call finds it at once
        return entry

    def _declared(self, given: tuple[types.Type, ...]) -> tuple[types.Type, ...]:
        """Return the types as which arguments are passed: as `_plain`, and float64 where a parameter is declared so."""
        code, declared = self.py_func.__code__, self.py_func.__annotations__
        floats = {i for i, name in enumerate(code.co_varnames[: code.co_argcount]) if declared.get(name) in FLOAT}
        return tuple(
            types.float64 if i in floats and isinstance(kind, types.Integer) else _plain(kind)
            for i, kind in enumerate(given)
        )

    def _compile(self, sig: Any) -> Any:
        """Compile it, and what it uses of numba's own functions as inner kernels; garbage is left to lie meanwhile."""
        outermost = gc.isenabled()
        if outermost:
            gc.disable()
            dict.__setitem__(jit_registry, cpu_target, _numbas_inner)
        try:
            return super().compile(sig)
        finally:
            if isinstance(self._cache, Cache):
                self._cache.release(sig)
            if outermost:
                dict.__setitem__(jit_registry, cpu_target, numba.jit)
                gc.enable()


def _numbas_inner(**options: Any) -> Any:
    return numba.jit(pipeline_class=InnerCompiler, **options)


def _plain(kind: types.Type) -> types.Type:
    """Return the type as which an argument is passed: whole numbers are int64."""
    kind = types.unliteral(kind)
    return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind


class _Inner(_Kernel):
    """A kernel without the code through which Python could call it; for Python, it is compiled again."""

    _for_python: Any = None
    _options: Any

    def __call__(self, *args: Any) -> Any:
        if self._for_python is None:
            self._for_python = kernel(self.py_func, **self._options)
        return self._for_python(*args)


@overload
def kernel(function: F) -> F: ...
@overload
def kernel(function: None = None, **options: Any) -> Callable[[F], F]: ...
def kernel(function: F | None = None, **options: Any) -> Any:
    """Compile a function for Python and for other kernels.

    Parameters
    ----------
    function : callable
        What to compile.
    **options
        Those of numba's `njit`; and `signature`: the only one that it takes, which is compiled at once.
    """
    if function is None:
        return lambda function: kernel(function, **options)
    signature = options.pop("signature", None)
    compiled = numba.njit(function, no_cfunc_wrapper=True, pipeline_class=KernelCompiler, **options)
    compiled.__class__ = _Kernel
    compiled._cache = Cache(compiled)
    if signature is not None:
        compiled.compile(signature)
        compiled.disable_compile()
    return compiled


@overload
def inner(function: F) -> F: ...
@overload
def inner(function: None = None, **options: Any) -> Callable[[F], F]: ...
def inner(function: F | None = None, **options: Any) -> Any:
    """Compile a function for other kernels, which takes a third of the time; it is kept with its callers only.

    Where Python calls it, too, it is compiled once more, as a kernel.
    """
    if function is None:
        return lambda function: inner(function, **options)
    compiled: Any = numba.njit(
        function, no_cfunc_wrapper=True, no_cpython_wrapper=True, pipeline_class=InnerCompiler, **options
    )
    compiled.__class__, compiled._options = _Inner, options
    return compiled
