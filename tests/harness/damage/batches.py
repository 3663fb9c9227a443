"""Damage to batches: anywhere, or inside the CRC with the CRC put right again; and buffers that end where they end."""

import ctypes
import random
import struct
import weakref
import zlib

import numpy as np
from crc32c import crc32c

from cleanerd.format.codecs import Codec, compress, decompress
from cleanerd.kernels.tables import Bytes

_PAGE = 4096
_READ_WRITE, _PRIVATE_ANONYMOUS = 3, 0x22
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

# Numbers at which something changes: sizes of headers, of varints, of integers.
_EDGES = [0, 1, 2, 7, 13, 14, 21, 22, 25, 26, 60, 61, 62, 127, 128, 254, 255, 256, 2**32 - 2, 2**64 - 1]
_EDGES += [2**bits + d for bits in (15, 16, 31, 32, 63) for d in (-1, 0)]


def guarded(data: bytes, *, at_start: bool = False) -> Bytes:
    """A copy of `data` between two pages that nobody may touch; it touches the second one, or the first."""
    if not data:
        return np.empty(0, np.uint8)
    size = -(-len(data) // _PAGE) * _PAGE + 2 * _PAGE
    address = _libc.mmap(None, size, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    assert address not in (None, 2**64 - 1)
    assert _libc.mprotect(address, _PAGE, 0) == 0
    assert _libc.mprotect(address + size - _PAGE, _PAGE, 0) == 0
    begin = address + _PAGE if at_start else address + size - _PAGE - len(data)
    memory = (ctypes.c_uint8 * len(data)).from_address(begin)
    weakref.finalize(memory, _libc.munmap, address, size)
    buffer = np.frombuffer(memory, np.uint8)
    buffer[:] = np.frombuffer(data, np.uint8)
    return buffer


def damage(rng: random.Random, data: bytes) -> bytes:
    """Some bits, bytes or numbers changed, some bytes cut out, put in or cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not changed:
            break
        _damage_once(rng, changed, rng.randrange(len(changed)))
    return bytes(changed)


def _damage_once(rng: random.Random, data: bytearray, at: int) -> None:
    match rng.choices(range(6), (8, 4, 4, 1, 1, 1))[0]:
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        case 2:
            size = rng.choice((2, 4, 8))
            number = rng.choice(_EDGES) % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, "big")[: len(data) - at]
        case 3:
            del data[at : at + rng.randrange(1, 20)]
        case 4:
            data[at:at] = rng.choice((b"\x80", b"\xff", rng.randbytes(1))) * rng.randrange(1, 20)
        case _:
            del data[at:]


def damage_inside_crc(rng: random.Random, batch: bytes) -> bytes:
    """One batch damaged behind its CRC, in its compressed records where it has any; length and CRC are right."""
    is_v2 = batch[16] == 2
    codec = batch[22 if is_v2 else 17] & 7
    body_at = 61 if is_v2 else (26 if batch[16] == 1 else 18) + 8
    if codec != Codec.NONE and len(batch) > body_at and rng.random() < 0.7:
        body = damage(rng, decompress(Codec(codec), batch[body_at:], batch[16]))
        packed = compress(Codec(codec), body, batch[16])
        head = batch[:61] if is_v2 else batch[: body_at - 4] + struct.pack(">i", len(packed))
        return sealed(head + packed)
    if is_v2 and rng.random() < 0.5:
        header = damage(rng, batch[21:61])[:40].ljust(40, b"\0")
        return sealed(batch[:21] + header + batch[61:])
    intact = 61 if is_v2 else 17
    return sealed(batch[:intact] + damage(rng, batch[intact:]))


def sealed(batch: bytes) -> bytes:
    """The batch with the length and the CRC that its bytes ask for."""
    data = bytearray(batch)
    struct.pack_into(">i", data, 8, len(data) - 12)
    if data[16] == 2:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    else:
        struct.pack_into(">I", data, 12, zlib.crc32(bytes(data[16:])))
    return bytes(data)
