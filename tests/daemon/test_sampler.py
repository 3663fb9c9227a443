"""How dirty logs are is remembered now and then, and only of those that have moved."""

from cleanerd.daemon.loops.sampler import Sampler
from tests.cleaning.logs import segment
from tests.operate.world import World


def test_a_sample_every_ten_minutes_of_all_and_of_logs_that_have_moved(world: World) -> None:
    parts, (one, two) = world.parts, (world.log("one"), world.log("two"))
    sampler = Sampler(parts)
    first_ms = parts.clock.now_ms() // 600_000 * 600_000
    for second in (0, 1, 599):
        sampler.take(first_ms + 1000 * second)
    end = int(segment(world.a / "one-0", -1).stem)  # as if a cleaning had been here
    (world.a / "cleaner-offset-checkpoint").write_text(f"0\n1\none 0 {end}\n")
    world.scan()
    sampler.take(first_ms + 600_000)

    def found(log: object) -> list[tuple[int, float]]:
        return [(at.time_ms - first_ms, round(at.dirty_ratio, 2)) for at in world.history.samples(log, 0)]

    assert found(one) == [(0, 1.0), (600_000, 0.0)]
    assert found(two) == [(0, 1.0)]
    assert found(None) == [(0, 1.0), (600_000, 0.67)]
    (total, _), (alone, _) = world.history.samples(None, 0), world.history.samples(one, 0)
    assert total.size_bytes == 3 * alone.size_bytes == 3 * parts.inventory.facts(one).contents.size_bytes
