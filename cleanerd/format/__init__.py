"""Bytes to values and back, one module per on-disk format. No I/O, no clock."""
