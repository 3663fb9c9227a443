"""Where cleanings run."""

import os

from cleanerd.config.model import CleanerdConfig


def spark_master(config: CleanerdConfig) -> str:
    """`cleanerd.spark.master`, else log.cleaner.threads local cores, else all that this process may use."""
    if config.spark_master:
        return config.spark_master
    if config.log_cleaner_threads_is_set:
        return f"local[{config.log_cleaner_threads}]"
    return f"local[{len(os.sched_getaffinity(0))}]"


def express_master(config: CleanerdConfig) -> str:
    """Where urgent small cleanings run: long tasks of others may hold all cores of the usual place."""
    master = spark_master(config)
    return "local[1]" if master.startswith("local[") else master
