"""Where cleanings run."""

from dataclasses import dataclass, field, replace

from cleanerd.config.model import CleanerdConfig
from cleanerd.env.cores import usable_cores


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """The settings that a Spark session is built from; other settings need another session."""

    master: str
    conf: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # properties of Spark; may hold secrets


def spark_master(config: CleanerdConfig) -> str:
    """`cleanerd.spark.master`, else log.cleaner.threads local cores, else all that this process may use."""
    if config.spark_master:
        return config.spark_master
    if config.log_cleaner_threads_is_set:
        return f"local[{config.log_cleaner_threads}]"
    return f"local[{usable_cores()}]"


def spark_place(config: CleanerdConfig) -> SparkPlace:
    """The Spark master and settings for cleanings."""
    return SparkPlace(spark_master(config), config.spark_conf)


def express_place(config: CleanerdConfig) -> SparkPlace:
    """The master for urgent small cleanings: long tasks of others may hold all cores of the usual one."""
    place = spark_place(config)
    return replace(place, master="local[1]") if place.master.startswith("local[") else place
