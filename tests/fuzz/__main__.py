"""`python -m tests.fuzz`: feed all targets, or some, and print what became of it. Exit code 1 with a failure."""

import argparse
import sys

from tests.fuzz.guard import Fed, Limits, feed
from tests.fuzz.targets import Target, all_targets


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--inputs", type=int, default=50_000, help="of all targets together (default: %(default)s)"
    )
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument(
        "--seed", type=int, default=0, help="number of the first input (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="limit for one input")
    return parser.parse_args()


def shares(targets: dict[str, Target], inputs: int) -> dict[str, int]:
    """How many inputs each gets: the fewer the more one costs, and at least one."""
    whole = sum(1 / target.cost for target in targets.values())
    return {name: max(round(inputs / target.cost / whole), 1) for name, target in targets.items()}


def main() -> int:
    options = _parsed()
    targets = {name: t for name, t in all_targets().items() if not options.target or name in options.target}
    total = Fed()
    for name, count in shares(targets, options.inputs).items():
        seeds = range(options.seed, options.seed + count)
        fed = feed(name, targets[name], seeds, Limits(seconds=options.seconds))
        print(f"{name:34} {fed} in {fed.seconds:.1f} s", flush=True)
        for failure in fed.failures:
            print(failure, flush=True)
        total.add(fed)
    print(total)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
