"""What README says of each release, as measured: `python -m tests.broker.matrix`.

For each release of tests/kafka/releases.toml what `compact` proves, with topics of every kind instead of a few.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.harness.broker.compact import prove
from tests.harness.broker.releases import SWITCH, releases
from tests.harness.broker.workload import SCENARIOS

HEAD = """\
| Kafka | topics known to | cleaned as by its own cleaner | loaded, read | swapped live |
|---|---|---|---|---|"""
METADATA = {"kraft": "KRaft", "zookeeper": "ZooKeeper"}


def main() -> int:
    """Exit code 1 when anything is wrong; what, on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.matrix", description=__doc__)
    parser.add_argument(
        "--release", action="append", choices=list(releases()), help="only this one; repeatable"
    )
    parser.add_argument(
        "--topics", type=int, default=2 * len(SCENARIOS), help="how many (default: %(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the directories of a release that fails")
    options = parser.parse_args()
    seeds, failed = range(options.topics), 0
    print(HEAD)
    for version in options.release or releases():
        os.environ[SWITCH] = version
        root = Path(tempfile.mkdtemp(prefix=f"matrix-{version}-"))
        proof = prove(root / "proof", seeds)
        failed += bool(proof.faults)
        for fault in proof.faults:
            print(f"{version}: {fault}", file=sys.stderr)
        answers = ["no" if part else "yes" for part in (proof.cleaned, proof.loaded, proof.swapped)]
        print(f"| {version} | {METADATA[releases()[version].metadata]} | {' | '.join(answers)} |", flush=True)
        if not (proof.faults and options.keep):
            shutil.rmtree(root)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
