"""The reference of all keys as Markdown, made from the declarations of the keys."""

from collections.abc import Iterable

from cleanerd.config.keys import (
    BROKER_KEYS,
    SPARK_CONF_PREFIX,
    TOPIC_KEYS,
    WITHOUT_EFFECT,
)
from cleanerd.config.model import INT64_MAX
from cleanerd.config.settings import Key
from cleanerd.config.sources import OWN_PREFIX, environment_variable
from cleanerd.config.values import DOUBLE_MAX, UNLIMITED

_HEAD = """# Configuration reference

Made from `cleanerd/config/model.py` by `cleanerd config reference`; a test compares the two. Where a value can come from,
highest first: the command line; `topics.d/<topic>.properties`; the cluster's metadata log or, without one, the broker's
answer; the environment; the config file; the default. `cleanerd config show --origin` shows which one. A variable that
differs from the config file is a warning. `KAFKA_LOG_DIR` gives way to a config file that names log directories: in many
images it is the directory of the application logs. `dedupe` in a `cleanup.policy` is an old name of `compact`. *Reload*: the
daemon takes a new value while it runs; otherwise a reload that changes the key is refused as a whole.
"""

_SPARK_CONF = f"""
`{SPARK_CONF_PREFIX}*` in the config file or with `--set` passes a property to Spark and wins over what cleanerd chooses:
`{SPARK_CONF_PREFIX}spark.executor.memory=2g`. A reload that changes one takes effect with the next Spark job.
`spark.master` is `cleanerd.spark.master`.

Environment variables for Spark, Hadoop and Java (`SPARK_HOME`, `SPARK_LOCAL_DIRS`, `HADOOP_CONF_DIR`,
`JAVA_TOOL_OPTIONS` and the like) have no effect, except `JAVA_HOME` and those by which the clients of YARN and Kubernetes
find their cluster. Options of the JVM go into `{SPARK_CONF_PREFIX}spark.driver.defaultJavaOptions`.

Spark's ports ask for a secret. With a `local` master cleanerd draws one for every session, and the ports are on loopback
only. A standalone master, its workers and cleanerd have to share one: set `spark.authenticate=true` and
`spark.authenticate.secret=...` in `conf/spark-defaults.conf` of every node, and the same secret as
`{SPARK_CONF_PREFIX}spark.authenticate.secret` in a config file that only cleanerd can read. Without it, cleanerd uses the
cluster without authentication. `config show` hides such values.

Each executor of a cluster opens one more port, chosen by the system, where tasks of other hosts fetch fingerprints (not
records) with a token of its own; a firewall between the hosts has to let them through.
"""


def render_reference() -> str:
    """The whole document."""
    own = [key for name, key in BROKER_KEYS.items() if name.startswith(OWN_PREFIX)]
    synonyms = {name for key in TOPIC_KEYS.values() for name in key.synonyms}
    kafka = [
        key for name, key in BROKER_KEYS.items() if not name.startswith(OWN_PREFIX) and name not in synonyms
    ]
    return "\n".join(
        [
            _HEAD,
            "## Keys of cleanerd\n",
            *_table(_broker_row(key) for key in own),
            _SPARK_CONF,
            "\n## Kafka's broker keys\n",
            *_table(_broker_row(key) for key in kafka),
            "\n## Kafka's topic keys\n",
            "A broker key is the default of topics that do not set the key; of several the first that is set wins.\n",
            *_topic_table(TOPIC_KEYS.values()),
            "\n## Kafka's keys without effect\n",
            "Their values are not looked at. Given to cleanerd itself, with `--set` or in `topics.d`, they are a warning.\n",
            "| key | why |",
            "|---|---|",
            *(f"| `{name}` | {why} |" for name, why in WITHOUT_EFFECT.items()),
            "",
        ]
    )


def _table(rows: Iterable[str]) -> list[str]:
    return ["| key | type | default | valid | reload | |", "|---|---|---|---|---|---|", *rows]


def _broker_row(key: Key) -> str:
    variable = f" Environment: `{environment_variable(key.name)}`." if key.name.startswith(OWN_PREFIX) else ""
    return _row(key, key.scope.value, f"{key.doc}{variable}")


def _topic_table(keys: Iterable[Key]) -> list[str]:
    head = ["| key | type | default | valid | broker keys | |", "|---|---|---|---|---|---|"]
    return head + [
        _row(key, ", ".join(f"`{name}`" for name in key.synonyms) or "none", key.doc) for key in keys
    ]


def _row(key: Key, fifth: str, doc: str) -> str:
    kind = key.type.name.lower() + (f", {key.unit}" if key.unit else "")
    return f"| `{key.name}` | {kind} | {_default(key.default)} | {key.check.expected} | {fifth} | {doc} |"


def _default(value: object) -> str:
    if value is None:
        return "not set"
    if value in (INT64_MAX, DOUBLE_MAX):
        return UNLIMITED
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    return f"`{text}`" if text else "empty"
