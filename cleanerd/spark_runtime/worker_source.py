"""The life of a Python daemon that no forked one has replaced: imports all that workers need, then forks them."""

import gc
import importlib
import os

from cleanerd.spark_runtime import block_store
from cleanerd.spark_runtime.forked_daemon import TASKS
from cleanerd.spark_runtime.pyspark_privates import serve_workers


def serve() -> None:
    """Fork workers until Spark closes the input of this process."""
    if block_store.DRIVER in os.environ:  # before kernels: the server needs none, and stays small
        block_store.begin_server(os.environ[block_store.DRIVER], os.environ["SPARK_LOCAL_DIRS"].split(",")[0])
    importlib.import_module(TASKS).make_ready()
    gc.freeze()  # a collection in a worker would copy the pages of all that is imported here
    serve_workers()
