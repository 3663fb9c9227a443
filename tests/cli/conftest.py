"""The command line in this process."""

from tests.harness.command_line import cleaning as cleaning
from tests.harness.command_line import daemon as daemon
from tests.harness.command_line import run as run
from tests.harness.command_line import terminal as terminal
