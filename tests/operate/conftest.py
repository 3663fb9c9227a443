"""A world for those that need one as it is."""

from tests.harness.daemon.world import world as world
