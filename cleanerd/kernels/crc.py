"""CRC-32C of record batches, and its single steps, which digests are made of.

Where the processor multiplies 64 bytes at once without carry (x86-64 with AVX-512 and VPCLMULQDQ), runs of 256 bytes and
more are folded, which is more than twice as fast as the CRC instruction of x86-64 or AArch64 (Gopal and others, "Fast CRC
Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009). That instruction takes what is shorter, and
everything on other processors; where there is neither, a table, eight bytes a step.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .native import JIT, address_of, le64, njit

_POLYNOMIAL = 0x1_1EDC_6F41
_REFLECTED = 0x82F6_3B78
_BLOCK_BITS = 8  # 256 bytes
_BLOCK_BYTES = 1 << _BLOCK_BITS
_LANES = 4  # of 64 bytes


def _table():
    table = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_REFLECTED if crc & 1 else 0)
        table[0, byte] = crc
    for row in range(1, 8):
        table[row] = (table[row - 1] >> 8) ^ table[0][table[row - 1] & 0xFF]
    return table


_TABLE = _table()


@njit(**JIT)
def crc_step8_table(crc, word):
    """Eight bytes (little endian in `word`) into `crc`, by table."""
    word ^= np.uint64(crc)
    crc = np.uint32(0)
    for byte in range(8):
        crc ^= _TABLE[7 - byte, np.int64((word >> np.uint64(8 * byte)) & np.uint64(0xFF))]
    return crc


@njit(**JIT)
def crc_step1(crc, byte):
    """Add one byte to `crc`, by table."""
    return (crc >> np.uint32(8)) ^ _TABLE[0, np.int64((crc ^ np.uint32(byte)) & np.uint32(0xFF))]


def _instruction(name, crc_bits):
    @intrinsic
    def step(typing_context, crc, word):
        def codegen(context, builder, signature, args):
            integer = ir.IntType(crc_bits)
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(integer, [integer, ir.IntType(64)]), name
            )
            crc_in = builder.zext(args[0], integer) if crc_bits > 32 else args[0]
            crc_out = builder.call(function, [crc_in, args[1]])
            return builder.trunc(crc_out, ir.IntType(32)) if crc_bits > 32 else crc_out

        return types.uint32(types.uint32, types.uint64), codegen

    return step


def _has() -> set[str]:
    """Features of the processor that numba compiles for; `NUMBA_CPU_NAME` may name another than this one."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    machine = triple.partition("-")[0]
    return {machine.replace("arm64", "aarch64"), *features.split(",")}


def _choose_step8():
    if _has() >= {"x86_64", "+crc32"}:
        return _instruction("llvm.x86.sse42.crc32.64.64", 64)
    if _has() >= {"aarch64", "+crc"}:
        return _instruction("llvm.aarch64.crc32cx", 32)
    return crc_step8_table


crc_step8 = _choose_step8()


def _factors(distance_bits):
    """Factors that shift the halves of 16 bytes past so many bits: remainders of powers of x, reflected.

    A product of reflected factors has one bit less than its place, and these lie in the lower half of theirs: 33 bits.
    """
    return [_reflected_power(distance_bits + 64 - 33), _reflected_power(distance_bits - 33)]


def _reflected_power(exponent):
    remainder = 1
    for _ in range(exponent):
        remainder <<= 1
        if remainder >> 32:
            remainder ^= _POLYNOMIAL
    return int(f"{remainder:032b}"[::-1], 2)


def _fold(builder, folded, distance_bits, more):
    """`folded` moved over so many bits and added to `more`; of vectors of so many times 16 bytes."""
    kind, byte = folded.type, ir.IntType(8)
    name = {8: "llvm.x86.pclmulqdq.512", 2: "llvm.x86.pclmulqdq"}[kind.count]
    multiply = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, kind, byte]), name)
    factors = ir.Constant(kind, [kind.element(word) for word in _factors(distance_bits)] * (kind.count // 2))
    for halves in 0x00, 0x11:
        more = builder.xor(more, builder.call(multiply, [folded, factors, byte(halves)]))
    return more


@intrinsic
def _fold_blocks(typing_context, crc, array, start, blocks):
    """Two words, the CRC of which is that of `blocks` times 256 bytes of `array` from `start`, at least once."""
    signature = types.UniTuple(types.uint64, 2)(types.uint32, array, types.int64, types.int64)

    def codegen(context, builder, signature, args):
        crc, array, start, blocks = args
        long, index = ir.IntType(64), ir.IntType(32)
        wide, narrow = ir.VectorType(long, 8), ir.VectorType(long, 2)
        size = builder.mul(blocks, long(_BLOCK_BYTES))
        first = address_of(context, builder, signature.args[1], array, start, size)
        vectors = builder.bitcast(first, wide.as_pointer())

        def load(number):
            vector = builder.load(builder.gep(vectors, [number]))
            vector.align = 1
            return vector

        lanes = [cgutils.alloca_once(builder, wide) for _ in range(_LANES)]
        for number, lane in enumerate(lanes):
            vector = load(long(number))
            if number == 0:
                so_far = builder.insert_element(ir.Constant(wide, [0] * 8), builder.zext(crc, long), index(0))
                vector = builder.xor(vector, so_far)
            builder.store(vector, lane)
        end = builder.mul(blocks, long(_LANES))
        with cgutils.for_range_slice(builder, long(_LANES), end, long(_LANES)) as (at, _):
            for number, lane in enumerate(lanes):
                more = load(builder.add(at, long(number)))
                builder.store(_fold(builder, builder.load(lane), 8 * _BLOCK_BYTES, more), lane)
        folded = builder.load(lanes[0])
        for lane in lanes[1:]:
            folded = _fold(builder, folded, 8 * 64, builder.load(lane))
        halves = [ir.Constant(ir.VectorType(index, 2), [n, n + 1]) for n in range(0, 8, 2)]
        quarters = [builder.shuffle_vector(folded, ir.Constant(wide, ir.Undefined), half) for half in halves]
        folded = quarters[0]
        for quarter in quarters[1:]:
            folded = _fold(builder, folded, 8 * 16, quarter)
        assert folded.type == narrow
        words = [builder.extract_element(folded, index(number)) for number in range(2)]
        return context.make_tuple(builder, signature.return_type, words)

    return signature, codegen


@njit(**JIT)
def _blocks_folded(crc, buffer, start, blocks):
    words: tuple[np.uint64, np.uint64] = _fold_blocks(crc, buffer, start, blocks)
    return crc_step8(crc_step8(np.uint32(0), words[0]), words[1])


@njit(**JIT)
def _blocks_stepped(crc, buffer, start, blocks):
    for at in range(start, start + (blocks << _BLOCK_BITS), 8):
        crc = crc_step8(crc, le64(buffer, at))
    return crc


IS_FOLDING = _has() >= {"x86_64", "+crc32", "+pclmul", "+vpclmulqdq", "+avx512f"}
_take_blocks = _blocks_folded if IS_FOLDING else _blocks_stepped


@njit(**JIT)
def _crc32c_from(crc, buffer, start, end):
    position = np.int64(start)
    blocks = (end - position) >> _BLOCK_BITS
    if blocks > 0:
        crc = _take_blocks(crc, buffer, position, blocks)
        position += blocks << _BLOCK_BITS
    while position + 8 <= end:
        crc = crc_step8(crc, le64(buffer, position))
        position += 8
    while position < end:
        crc = crc_step1(crc, buffer[position])
        position += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@njit(**JIT)
def crc32c(buffer, start, end):
    """CRC-32C of `buffer[start:end]` (u1 array) as uint32."""
    return _crc32c_from(np.uint32(0xFFFFFFFF), buffer, start, end)


@njit(**JIT)
def crc32c_of_three(buffer, first, first_end, second, second_end, third, third_end):
    """`crc32c` of three runs of bytes at once: the instruction takes three cycles, but a new one can begin in each."""
    a = b = c = np.uint32(0xFFFFFFFF)
    shortest = min(first_end - first, second_end - second, third_end - third)
    words = 0 if IS_FOLDING and shortest >= _BLOCK_BYTES else shortest >> 3
    for i in range(0, 8 * words, 8):
        a = crc_step8(a, le64(buffer, first + i))
        b = crc_step8(b, le64(buffer, second + i))
        c = crc_step8(c, le64(buffer, third + i))
    done = 8 * words
    return (
        _crc32c_from(a, buffer, first + done, first_end),
        _crc32c_from(b, buffer, second + done, second_end),
        _crc32c_from(c, buffer, third + done, third_end),
    )
