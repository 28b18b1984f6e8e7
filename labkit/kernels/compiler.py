"""How kernels are compiled: each to LLVM's code, and to machine code once, within the kernel that Python calls.

numba would optimise a kernel that kernels alone call by itself, turn it into machine code that nobody runs, and
optimise it again within each of its callers, and of theirs. It would compile its own functions anew for each kind of
kernel that uses them.
"""

from __future__ import annotations

from typing import Any

from llvmlite.binding import parse_bitcode
from numba._dynfunc import make_function
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering


class _Flags(Flags):
    """Flags of a kernel: what numba compiles of its own for one kernel serves others with the same flags."""

    __slots__ = ()
    __eq__, __hash__ = object.__eq__, object.__hash__

    def copy(self) -> _Flags:
        """Return the one object for all flags like these but for wrappers; numba compares flags at each call."""
        made = _Flags(self)
        made.no_cpython_wrapper = made.no_cfunc_wrapper = True
        return _FLAGS.setdefault(made.summary(), made)


_FLAGS: dict[str, _Flags] = {}


class KernelCompiler(CompilerBase):
    """numba's passes, with another last step."""

    lowering: Any

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.state.flags = _Flags(self.state.flags)

    def define_pipelines(self) -> list[PassManager]:
        """Return the passes, in order."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(self.lowering if each is NativeLowering else each, why) for each, why in passes.passes]
        passes.finalize()
        return [passes]


class _Library(JITCodeLibrary):
    """Code whose functions are optimised by themselves with one set of passes."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout
        passes, builder = self._codegen._function_pass_manager(opt=1)
        for function in ll_module.functions:
            if not function.is_declaration:
                passes.run(function, builder)


class KeptLibrary(JITCodeLibrary):
    """Code from a file: machine code, and LLVM's code, which is not read before a kernel that calls it is compiled."""

    bitcode: bytes

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = parse_bitcode(self.bitcode)
            self._codegen._engine._load_defined_symbols(self._shared_module)
        return self._shared_module


class _InnerLibrary(_Library):
    """Code that is only ever linked into that of callers."""

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):
    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _Library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class _InnerLowering(NativeLowering):
    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        entry = make_function(
            lowered.fndesc.lookup_module(), lowered.fndesc.qualname, "", 0, lowered.env, ()
        )  # by it numba finds the code
        state.targetctx.insert_user_function(entry, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


KernelCompiler.lowering = _KernelLowering


class InnerCompiler(KernelCompiler):
    """The passes of a kernel that kernels alone call."""

    lowering = _InnerLowering
