#!/bin/sh
# Spark's JVM starts this for `python`. It takes the first bytes on the standard output of its child for an address, so what
# a sitecustomize.py or a .pth file prints goes to standard error, and `python_daemon` answers on descriptor 3.
CLEANERD_STDOUT=3 exec "$CLEANERD_PYTHON" "$@" 3>&1 1>&2
