"""What one broker leaves behind, for all tests to copy."""

from tests.harness.broker.origin import log_dir as log_dir
from tests.harness.broker.origin import origin as origin
