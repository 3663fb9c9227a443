"""Compiled loops that the cleaner does not need.

None calls one of another module here: the version of the compiled code (`kernels.compiled`) has the cleaner's kernels in it,
and numba sees a change in the file of the function itself, but in no other.
"""
