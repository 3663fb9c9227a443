"""Random logs of a real broker, cleaned by its own cleaner and by cleanerd: `python -m tests.broker.differential`.

A round takes some seeds. A broker with two log directories writes a topic for each: half of them at once, half in two
phases with a cleaning between; eight more logs are of magic 0 and 1. Then come three passes, each half a day or a day
after the one before, so that tombstones, markers and expired producers are met before and after their horizon. Each pass is
made three times, over the same bytes, once by swaps in a running broker, one of cleanerd's in rounds of a group; everything
is compared (`agreement`), the records with the model, too; and no digest changes, whoever cleans. In the end the broker goes
on with what cleanerd made of the first pass: `cleanerd verify` finds nothing wrong with it, the broker starts without a
word, its consumers and tools look at everything, its producers write, it is restarted, and its own cleaner cleans on top.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from cleanerd.env.clock import SystemClock
from cleanerd.format.names import TopicPartition
from cleanerd.tools.insight.digest import LogDigest, Question, digest_logs
from cleanerd.tools.insight.verify import verify
from tests.harness.broker.agreement import (
    check_with_broker,
    disagreements,
    dumps,
    make_passes,
    model_disagreements,
)
from tests.harness.broker.model import survivors
from tests.harness.broker.old_logs import add_old_logs, old_plans
from tests.harness.broker.origin import clean_by_broker, write_origin, write_phases
from tests.harness.broker.releases import current_release
from tests.harness.broker.swapping import build_agent
from tests.harness.broker.tools import first_dirty_offset, log_dir_names, log_dirs_in
from tests.harness.broker.workload import DAY_MS, Phase, TopicPlan, plan_topic
from tests.harness.spark.rounds import small_rounds

AGES_MS = (0, DAY_MS // 2, DAY_MS)
"""Before each pass; tombstones are kept for a day or not at all."""
SEEDS_A_ROUND = 40


def differences(root: Path, seeds: range) -> list[str]:
    """One round in the new directory `root`: all that is not as it should be, in words that begin with the topic."""
    build_agent()
    place = root / "logs"
    for name in log_dir_names(2):
        (place / name).mkdir(parents=True)
    plans = [plan_topic(seed) for seed in seeds]
    half = len(plans) // 2
    write_origin(root, place, plans[:half], plans[half:])
    old = old_plans(seeds[0])
    add_old_logs(root / "old", place, old)
    passes = make_passes(place, [*plans, *old], root / "theirs", AGES_MS)
    found: list[str] = []
    for number, made in enumerate(passes, 1):
        ours, swapped = root / f"ours-{number}", root / f"swapped-{number}"
        different = model_disagreements(made, plans)
        is_in_rounds = number % 2 == 0
        with small_rounds() if is_in_rounds else nullcontext():
            different += disagreements(made, [*plans, *old], ours)
        with nullcontext() if is_in_rounds else small_rounds():
            of_swaps = disagreements(made, [*plans, *old], swapped, by_swaps=True)
        different += [f"{text}, by swaps" for text in of_swaps]
        different += digest_differences([made.before, made.after, ours, swapped])
        found += [f"{text} (pass {number})" for text in different]
    ours = root / "ours-1"
    sound = verify([str(log_dir) for log_dir in log_dirs_in(ours)], topics={plan.topic for plan in plans})
    found += [f"verify: {finding}" for finding in sound.findings]
    check_with_broker(root / "reading-swapped", root / "swapped-1", dumps(passes[0].before, plans))
    return found + list(_goes_on(root, passes[0].before, ours, plans[:half]))


def digest_differences(places: Sequence[Path]) -> Iterator[str]:
    """Copies of the same logs, whose digests differ, or that have none."""
    logs = [
        str(log) for place in places for log_dir in log_dirs_in(place) for log in sorted(log_dir.glob("*-0"))
    ]
    found = digest_logs([log for log in logs if not os.path.basename(log).startswith("__")], Question())
    assert found.logs
    yield from (f"{directory} {reason}" for directory, reason in found.failed.items())
    by_log: dict[TopicPartition, list[LogDigest]] = defaultdict(list)
    for one in found.logs:
        by_log[one.topic_partition].append(one)
    for topic_partition, copies in by_log.items():
        if len({copy.digest for copy in copies}) > 1:
            yield f"{topic_partition}: {[(copy.directory, copy.keys, copy.at) for copy in copies]} differ"


def _goes_on(root: Path, before: Path, ours: Path, plans: Sequence[TopicPlan]) -> Iterator[str]:
    """The broker on what cleanerd left: reads, writes, starts again, cleans once more."""
    check_with_broker(root / "reading", ours, dumps(before, plans))
    write_phases(root / "writing", ours, [(plan, Phase.SECOND) for plan in plans])
    written = dumps(ours, plans)
    starts = {topic: first_dirty_offset(ours, log) for topic, log in written.items()}
    now_ms = SystemClock().now_ms()
    clean_by_broker(root / "on-top", ours, [plan.directory for plan in plans])
    for topic, after in dumps(ours, plans).items():
        if after.records != survivors(written[topic], first_dirty_offset=starts[topic], now_ms=now_ms):
            yield f"{topic}: the broker's own cleaning on top leaves other records than the model"


def main() -> int:
    """Exit code 1 when anything is different."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.differential", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1000, help="the first one (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the directories of a round that fails")
    options = parser.parse_args()
    end, failed = options.first + options.seeds, 0
    for first in range(options.first, end, SEEDS_A_ROUND):
        seeds, began_s = range(first, min(first + SEEDS_A_ROUND, end)), time.monotonic()
        root = Path(tempfile.mkdtemp(prefix="differential-"))
        found = differences(root, seeds)
        failed += len(found)
        for text in found:
            print(text)
        if not (found and options.keep):
            shutil.rmtree(root)
        kafka = current_release().version
        print(
            f"Kafka {kafka}, seeds {seeds[0]}-{seeds[-1]}: {len(found)} differences, {time.monotonic() - began_s:.0f} s"
        )
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
