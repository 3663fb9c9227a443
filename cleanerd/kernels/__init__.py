"""Compiled loops over arrays; the only importer of numba.

A kernel is a free function on arrays and scalars: it writes into preallocated outputs, returns counts and a status,
raises nothing and allocates nothing per record. The plain meaning of each one is its twin in `reference.py` (bytes to
verdicts) or the library that the test compares it with (SipHash, CRC). Names and dtypes of the tables are in `tables.py`.
"""

import os

from cleanerd.env.cores import answer_for_the_kernel
from cleanerd.kernels.compiled import check_memory, settle_cache

check_memory()
answer_for_the_kernel()
settle_cache(os.environ)
