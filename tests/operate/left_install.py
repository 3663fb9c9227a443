"""What metrics say of an install that another process has left under way."""

from dataclasses import replace

from cleanerd.env.files import RealFiles
from cleanerd.install.area import Area
from cleanerd.install.values import Step
from tests.install.world import fresh_install
from tests.operate.world import World


def an_install_of_another_process_is_found(world: World) -> None:
    """There is no cluster, so it cannot go on: until it does, somebody has to hear of the replica that is out."""
    area = Area(RealFiles(), str(world.a))
    area.make()
    began_ms = world.clock.now_ms() - 60_000
    install = replace(fresh_install(), topic="one", log_dir=str(world.a), began_ms=began_ms)
    area.journal.write(install.to(Step.ADDING, world.clock.now_ms()))
    installs = world.parts.installs
    installs.step()
    installs.step()
    for set_ms, out_s in (
        (0, 60),
        (-3_600_000, 65),
        (10**10, 70),
    ):  # somebody sets the clock: no time has gone by
        world.clock.wall_ms += set_ms
        assert world.scrape().total("cleanerd_install_replica_out_seconds") == out_s
        world.clock.advance(5_000)
    log = world.parts.inventory.logs()[0]
    world.parts.events.record_log("install", "returned", log, None)
    assert world.scrape().total("cleanerd_installs_total", outcome="returned") == 1
