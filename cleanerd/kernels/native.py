"""Unaligned loads and stores, copies and calls of C functions, for use inside kernels.

numba cannot express "eight bytes at this index" or "call what lies at this address", so these few intrinsics do it in
LLVM.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .kernel_cache import cache_of, compiling

JIT: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    # Kernels allocate nothing, so references need not be counted. numba counts, with an atomic instruction, at every
    # call between kernels that passes an array: half of the time of all kernels together.
    "_nrt": False,
}
INLINE: dict[str, Any] = {**JIT, "forceinline": True}
"""Forced inlining, for functions called at least once a record: LLVM's own heuristics stop inlining into large callers."""


_KERNELS: list[Any] = []
"""All of this process, whether they have been compiled or not."""


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """numba's, whose compiled code is kept in `kernel_cache`."""

    def compiled(function):
        dispatcher = numba.njit(**options)(function)
        dispatcher._cache = cache_of(function)
        dispatcher.compile = compiling()(dispatcher.compile)
        _KERNELS.append(dispatcher)
        return dispatcher

    return compiled


def make_ready() -> None:
    """Load all that the first kernel call needs (half a second), so that forked processes have it."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    load_kept()


def load_kept() -> None:
    """Load the cached code of the kernels that Python calls; it includes the kernels that these call."""
    within = {id(value) for kernel in _KERNELS for value in _refers_to(kernel.py_func)}
    for kernel in _KERNELS:
        if id(kernel) not in within:
            for signature in kernel._cache.signatures():
                kernel.compile(signature)


def _refers_to(function: Callable[..., Any]) -> list[Any]:
    found = inspect.getclosurevars(function)
    return [*found.globals.values(), *found.nonlocals.values()]


def address_of(context, builder, array, value, start, size):
    """Address of `size` bytes of an array from `start`. With NUMBA_BOUNDSCHECK=1 checks that they lie in it."""
    view = cgutils.create_struct_proxy(array)(context, builder, value=value)
    if context.enable_boundscheck:  # asked while the kernel is compiled; else there is no check in it
        zero = start.type(0)
        is_outside = builder.or_(
            builder.or_(builder.icmp_signed("<", start, zero), builder.icmp_signed("<", size, zero)),
            builder.icmp_signed(">", start, builder.sub(view.nitems, size)),
        )
        with cgutils.if_unlikely(builder, is_outside):
            context.call_conv.return_user_exc(builder, IndexError, ("bytes outside of an array",))
    return builder.gep(view.data, [start])


def _load(bits, swap):
    @intrinsic
    def load(typing_context, array, index):
        signature = types.Integer.from_bitwidth(bits, signed=False)(array, types.int64)

        def codegen(context, builder, signature, args):
            integer, size = ir.IntType(bits), args[1].type(bits // 8)
            start = address_of(context, builder, signature.args[0], args[0], args[1], size)
            address = builder.bitcast(start, integer.as_pointer())
            word = builder.load(address)
            word.align = 1
            return builder.bswap(word) if swap else word

        return signature, codegen

    return load


u8 = _load(8, swap=False)
le64 = _load(64, swap=False)
le32 = _load(32, swap=False)
be64u = _load(64, swap=True)
be32u = _load(32, swap=True)
be16u = _load(16, swap=True)


@intrinsic
def prefetch(typing_context, table, row):
    """Prefetch a row of a table for reading and writing."""
    signature = types.void(table, types.int64)

    def codegen(context, builder, signature, args):
        view = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=args[0])
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        start = builder.mul(args[1], builder.extract_value(view.strides, 0))
        address = builder.gep(builder.bitcast(view.data, byte), [start])
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(fetch, [address, word(1), word(3), word(1)])  # to write, to stay, data
        return context.get_dummy_value()

    return signature, codegen


def _store(bits):
    @intrinsic
    def store(typing_context, array, index, value):
        signature = types.void(array, types.int64, types.Integer.from_bitwidth(bits, signed=True))

        def codegen(context, builder, signature, args):
            integer, size = ir.IntType(bits), args[1].type(bits // 8)
            start = address_of(context, builder, signature.args[0], args[0], args[1], size)
            address = builder.bitcast(start, integer.as_pointer())
            builder.store(builder.bswap(args[2]), address).align = 1
            return context.get_dummy_value()

        return signature, codegen

    return store


store_be64 = _store(64)
store_be32 = _store(32)
store_be16 = _store(16)


@intrinsic
def copy_bytes(typing_context, target, target_start, source, source_start, length):
    """`target[target_start:][:length] = source[source_start:][:length]` as one memcpy; the two never overlap."""
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def codegen(context, builder, signature, args):
        to = address_of(context, builder, signature.args[0], args[0], args[1], args[4])
        origin = address_of(context, builder, signature.args[2], args[2], args[3], args[4])
        cgutils.raw_memcpy(builder, to, origin, args[4], 1)
        return context.get_dummy_value()

    return signature, codegen


def _call(size_bits, *, with_context):
    """Call the C function at `address`: reads `source[start:][:size]`, writes at most `room` bytes to `target[at:]`."""

    @intrinsic
    def call(typing_context, address, context, source, start, size, target, at, room):
        long = types.int64
        signature = long(long, long, source, long, long, target, long, long)

        def codegen(code, builder, signature, args):
            size_type, pointer = ir.IntType(size_bits), ir.IntType(8).as_pointer()
            read, written = (
                builder.bitcast(address_of(code, builder, signature.args[i], *args[i : i + 3]), pointer)
                for i in (2, 5)
            )
            sizes = [builder.trunc(args[i], size_type) if size_bits < 64 else args[i] for i in (4, 7)]
            if with_context:
                given = [builder.inttoptr(args[1], pointer), written, sizes[1], read, sizes[0]]
            else:
                given = [read, written, *sizes]
            kind = ir.FunctionType(size_type, [value.type for value in given])
            answer = builder.call(builder.inttoptr(args[0], kind.as_pointer()), given)
            return builder.sext(answer, ir.IntType(64)) if size_bits < 64 else answer

        return signature, codegen

    return call


call_lz4 = _call(32, with_context=False)
"""LZ4_decompress_safe and LZ4_compress_default: bytes written; 0 or less for an error. The context is not used."""
call_zstd = _call(64, with_context=True)
"""ZSTD_decompressDCtx and ZSTD_compress2: bytes written, a negative number for an error."""


@njit(**INLINE)
def last_bytes(buffer, start, length):
    """The last `length % 8` bytes of `buffer[start:start+length]` as a little-endian word."""
    count = length & 7
    if count == 0:
        return np.uint64(0)
    if length >= 8:  # one load that begins among the bytes before
        return le64(buffer, np.int64(start + length - 8)) >> np.uint64(8 * (8 - count))
    word = np.uint64(0)
    for i in range(count):
        word |= np.uint64(u8(buffer, np.int64(start + i))) << np.uint64(8 * i)
    return word


@njit(**JIT)
def be64(buffer, position):
    """Signed big-endian int64 at `position`."""
    return np.int64(be64u(buffer, np.int64(position)))


@njit(**JIT)
def be32(buffer, position):
    """Signed big-endian int32 at `position`, as int64."""
    return np.int64(np.int32(be32u(buffer, np.int64(position))))


@njit(**JIT)
def be16(buffer, position):
    """Signed big-endian int16 at `position`, as int64."""
    return np.int64(np.int16(be16u(buffer, np.int64(position))))
