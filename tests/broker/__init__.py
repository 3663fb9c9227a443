"""The tests that need a real Kafka broker.

Experiments outside this repository know the modules of `tests.harness.broker` by the name of this package.
"""

import tests.harness.broker as harness

__path__.extend(harness.__path__)
