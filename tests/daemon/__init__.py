"""Tests of the daemon's parts, and of daemons that are processes of their own.

Experiments outside this repository know the modules of `tests.harness.daemon` by the name of this package.
"""

import tests.harness.daemon as harness

__path__.extend(harness.__path__)
