"""NamedTuples of columns that kernels get by reference: one pointer, whatever they hold.

numba passes a tuple of arrays as seven numbers or more for each of them. A call with all columns of a simulation pushed
some 500, and each kernel on the way was compiled with code for all of them. Here a call pushes one pointer, to a block
on the caller's stack. Nothing changes that block while kernels run, so LLVM may keep what it has read from there.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.core.typing.typeof import typeof
from numba.extending import NativeValue, infer_getattr, lower_getattr_generic, register_model, typeof_impl, unbox

C = TypeVar("C", bound=type[NamedTuple])


def by_reference(columns: C) -> C:
    """Let kernels get the tuples of this class by reference; they read its fields, and neither make nor unpack one."""

    @typeof_impl.register(columns)
    def _typeof(value: Any, _: Any) -> ColumnsType:
        return ColumnsType(columns, tuple(typeof(field) for field in value))

    return columns


class ColumnsType(types.Type):
    """The type of a tuple of columns, as numba knows it."""

    def __init__(self, columns: Any, fields: tuple[types.Type, ...]) -> None:
        self.columns, self.fields = columns, fields
        super().__init__(f"{columns.__module__}.{columns.__qualname__}({', '.join(field.name for field in fields)})")

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two types equal."""
        return self.columns, self.fields

    @property
    def literal_type(self) -> ColumnsType:
        """The type itself: by it numba knows that columns are not None, and leaves out what is done where they are."""
        return self


@register_model(ColumnsType)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, of: ColumnsType) -> None:
        block = ir.LiteralStructType([manager.lookup(field).get_data_type() for field in of.fields])
        super().__init__(manager, of, block.as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):
    key = ColumnsType

    def generic_resolve(self, of: ColumnsType, name: str) -> types.Type | None:
        names = of.columns._fields
        return of.fields[names.index(name)] if name in names else None


@lower_getattr_generic(ColumnsType)
def _field(context: Any, builder: Any, of: ColumnsType, block: Any, name: str) -> Any:
    index = of.columns._fields.index(name)
    read = builder.load(cgutils.gep_inbounds(builder, block, 0, index))
    read.set_metadata("invariant.load", builder.module.add_metadata([]))
    field = of.fields[index]
    return impl_ret_borrowed(context, builder, field, context.data_model_manager[field].from_data(builder, read))


@unbox(ColumnsType)
def _from_python(of: ColumnsType, value: Any, c: Any) -> NativeValue:
    builder, manager = c.builder, c.context.data_model_manager
    block = cgutils.alloca_once(builder, manager.lookup(of).get_value_type().pointee)
    failed = cgutils.alloca_once_value(builder, cgutils.false_bit)
    fields = []
    for index, field in enumerate(of.fields):
        native = c.unbox(field, c.pyapi.tuple_getitem(value, index))
        builder.store(builder.or_(builder.load(failed), native.is_error), failed)
        builder.store(manager[field].as_data(builder, native.value), cgutils.gep_inbounds(builder, block, 0, index))
        fields.append((field, native.value))

    def release() -> None:
        for field, native in fields:
            c.context.nrt.decref(builder, field, native)

    return NativeValue(block, is_error=builder.load(failed), cleanup=release if c.context.enable_nrt else None)
