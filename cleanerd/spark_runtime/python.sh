#!/bin/sh
# Spark's JVM starts this for `python -m MODULE`, and takes the first bytes on the standard output of its child for an address. So
# what a sitecustomize.py or a .pth file prints goes to standard error, and the module, which comes after them, gets the output.
exec "$CLEANERD_PYTHON" -c '
import os, runpy, sys
os.dup2(3, 1)
os.close(3)
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
' "$@" 3>&1 1>&2
