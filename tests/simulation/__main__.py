"""Worlds by seed, until one breaks a promise: `python -m tests.simulation --seeds N [--seed K] [--steps M] [--minutes T]`.

In each a daemon, its engine and cooperating writers or a broker live through kills, stops, power cuts, failing calls, full
disks, aborted transactions, truncations, deletions of records, holds, reloads and jumps of the clock (`world`), and after
each step the logs are judged from outside (`judge`). There are one to three log directories, of which one may fail
(`directories`), and a broker moves replicas from one to another (`moving`).
A failure prints the end of its trace and its seed: `--seed K --seeds 1` runs it once more, the same to the last operation.
"""

import argparse
import sys
import time
from collections import Counter

from tests.simulation.play import play
from tests.simulation.rules import Violation


def main() -> int:
    """The exit code: 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument(
        "--steps", type=int, default=150, help="in each, before all that is to be done gets done"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no seed begins later")
    parser.add_argument("--keep-going", action="store_true", help="after a failure")
    options = parser.parse_args()
    began_s, counts, failed = time.monotonic(), Counter[str](), list[int]()
    for seed in range(options.seed, options.seed + options.seeds):
        if time.monotonic() - began_s > options.minutes * 60 or (failed and not options.keep_going):
            break
        counts["seeds"] += 1
        try:
            counts.update(play(seed, options.steps).counts)
        except Violation as violation:
            print(violation, flush=True)
            failed.append(seed)
    print(
        ", ".join(f"{count} {what}" for what, count in counts.items()),
        f"in {time.monotonic() - began_s:.0f} s",
    )
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
