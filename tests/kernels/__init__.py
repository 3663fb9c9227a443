"""Proofs of the kernels: each against its oracle, and the whole path against the plain twin."""
