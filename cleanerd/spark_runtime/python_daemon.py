"""`spark.python.daemon.module`: the process that Spark's Python workers are forked from, with cleanerd already imported.

Each worker would take two seconds of CPU time and 100 MiB for that; and not only at the start, because Spark ends workers
that had nothing to do for a minute. Where the driver has forked one that is ready (`forked_daemon`), that one takes over.
"""

import os

from cleanerd.spark_runtime.forked_daemon import ADDRESS, hand_over

if __name__ == "__main__" and (ADDRESS not in os.environ or not hand_over(os.environ[ADDRESS])):
    from cleanerd.spark_runtime.worker_source import serve

    serve()
