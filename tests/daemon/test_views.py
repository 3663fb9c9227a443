"""What the control API shows of a log."""

from hypothesis import given

from cleanerd.config.model import TopicConfig
from cleanerd.daemon.reports.views import _sizes
from tests.daemon.test_urgency import NOW_MS, Disk, configs, disks


@given(disk=disks(), config=configs)
def test_bytes_of_a_log_are_counted_once(disk: Disk, config: TopicConfig) -> None:
    """Clean, cleanable, not yet cleanable and active bytes add up, also where a checkpoint cuts a segment (0.4)."""
    known, _, _ = disk
    bound = known.upper_bound(config, NOW_MS)
    sizes = _sizes(known, bound)
    assert sum(sizes.values()) == known.contents.size_bytes
    assert min(sizes.values()) >= 0
    assert sizes["cleanable_bytes"] == bound.cleanable_bytes
    if sizes["uncleanable_bytes"]:
        assert bound.first_uncleanable_offset < known.contents.active_base_offset
