"""Records how dirty logs are, now and then, for a plot."""

from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.log_id import LogId
from cleanerd.policy.backtest import SizeSample

_EVERY_MS = 600_000
_RATIO_STEP = 0.005
_SIZE_STEP = 0.01


class Sampler:
    """Every ten minutes: all compacted logs together, and each that has moved since it was last remembered."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._slot = -1
        self._last: dict[LogId, SizeSample] = {}

    def take(self, now_ms: int) -> None:
        """Take the sample of these ten minutes, unless that is done."""
        slot = now_ms // _EVERY_MS
        if slot == self._slot:
            return
        self._slot = slot
        found: dict[LogId, SizeSample] = {}
        for log in self._parts.inventory.logs():
            estimate = self._parts.due_logs.estimate(log)
            if estimate is not None:
                size, bound = estimate.known.contents.size_bytes, estimate.range
                cleanable = 0 if bound.is_empty else bound.cleanable_bytes
                found[log] = SizeSample(now_ms, size, bound.clean_bytes, cleanable)
        moved = {log: sample for log, sample in found.items() if _has_moved(self._last.get(log), sample)}
        self._last = {log: moved.get(log) or self._last[log] for log in found}
        self._parts.store.record_samples(_sum(now_ms, found), moved)


def _has_moved(last: SizeSample | None, sample: SizeSample) -> bool:
    if last is None or abs(sample.dirty_ratio - last.dirty_ratio) >= _RATIO_STEP:
        return True
    return abs(sample.size_bytes - last.size_bytes) > _SIZE_STEP * last.size_bytes


def _sum(now_ms: int, found: dict[LogId, SizeSample]) -> SizeSample:
    samples = found.values()
    return SizeSample(
        now_ms,
        sum(sample.size_bytes for sample in samples),
        sum(sample.clean_bytes for sample in samples),
        sum(sample.cleanable_bytes for sample in samples),
    )
