"""`spark.python.daemon.module`: the process that Spark's Python workers are forked from, with cleanerd already imported.

Each worker would import cleanerd, numba and numpy by itself otherwise: a second of CPU time and 100 MiB for each, which all
of them share now.
"""

import gc

from pyspark import daemon

import cleanerd.pipeline.tasks  # noqa: F401 - what the workers run

if __name__ == "__main__":
    gc.freeze()  # a collection in a worker would copy the pages of all that is imported here
    daemon.manager()
