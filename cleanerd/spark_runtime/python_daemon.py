"""`spark.python.daemon.module`: the process that Spark's Python workers are forked from, with cleanerd already imported.

Each worker would take two seconds of CPU time and 100 MiB for that; and not only at the start, because Spark ends workers
that had nothing to do for a minute. Where the driver has forked one that is ready (`forked_daemon`), that one takes over.
"""

import gc
import importlib
import os

from cleanerd.spark_runtime.forked_daemon import ADDRESS, TASKS, hand_over


def _serve() -> None:
    from cleanerd.spark_runtime import block_store  # noqa: PLC0415 - what hands over is to be quick

    if block_store.DRIVER in os.environ:  # before kernels: the server needs none, and stays small
        block_store.begin_server(os.environ[block_store.DRIVER], os.environ["SPARK_LOCAL_DIRS"].split(",")[0])
    from cleanerd.kernels.native import make_ready  # noqa: PLC0415
    from cleanerd.spark_runtime.pyspark_privates import serve_workers  # noqa: PLC0415

    importlib.import_module(TASKS)
    make_ready()
    gc.freeze()  # a collection in a worker would copy the pages of all that is imported here
    serve_workers()


if __name__ == "__main__":
    if ADDRESS not in os.environ or not hand_over(os.environ[ADDRESS]):
        _serve()
