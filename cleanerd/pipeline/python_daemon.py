"""`spark.python.daemon.module`: the process that Spark's Python workers are forked from, with cleanerd already imported.

Each worker would import cleanerd, numba and numpy by itself otherwise: a second of CPU time and 100 MiB for each, which all
of them share now. Where the driver has forked one that has imported them (`forked_daemon`), that one takes over.
"""

import gc
import os

from cleanerd.pipeline.forked_daemon import ADDRESS, hand_over


def _serve() -> None:
    from pyspark import daemon  # noqa: PLC0415

    import cleanerd.pipeline.tasks  # noqa: F401, PLC0415 - what the workers run

    gc.freeze()  # a collection in a worker would copy the pages of all that is imported here
    daemon.manager()


if __name__ == "__main__":
    if ADDRESS not in os.environ or not hand_over(os.environ[ADDRESS]):
        _serve()
