"""Other settings for a log: its recorded growth, cleaned by other rules (`policy.backtest`)."""

from collections.abc import Iterator
from dataclasses import asdict, replace

from cleanerd.config.model import TopicConfig
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import WhatIf
from cleanerd.policy.backtest import CleaningSetting, replay

_SINCE_MS = 30 * 86_400_000
_SAMPLES_MIN = 3
_RATIOS = (0.1, 0.3, 0.5, 0.8)
_DAY_MS = 86_400_000
_RETENTION_DAYS = (1, 7)
"""No answer reaches beyond what is recorded."""


def what_if(parts: Parts, log: LogId, config: TopicConfig) -> tuple[WhatIf, ...]:
    """The setting of now first; nothing as long as too little is recorded."""
    samples = parts.store.samples(log, parts.clock.now_ms() - _SINCE_MS)
    if len(samples) < _SAMPLES_MIN:
        return ()
    lasted_ms = samples[-1].time_ms - samples[0].time_ms
    return tuple(
        WhatIf(setting=name, lasted_ms=lasted_ms, **asdict(replay(samples, setting)))
        for name, setting in _settings(config)
    )


def _settings(config: TopicConfig) -> Iterator[tuple[str, CleaningSetting]]:
    now = CleaningSetting(
        config.min_cleanable_dirty_ratio,
        config.max_compaction_lag_ms,
        max(config.segment_bytes, 1),
        config.retention_ms if config.delete else -1,
        config.retention_bytes if config.delete else -1,
    )
    yield "as it is", now
    for ratio in _RATIOS:
        if ratio != now.min_cleanable_dirty_ratio:
            yield f"min.cleanable.dirty.ratio={ratio}", replace(now, min_cleanable_dirty_ratio=ratio)
    if now.max_compaction_lag_ms > _DAY_MS:
        yield f"max.compaction.lag.ms={_DAY_MS}", replace(now, max_compaction_lag_ms=_DAY_MS)
    for size in (now.segment_bytes // 4, now.segment_bytes * 4):
        if 0 < size < 2**31:
            yield f"segment.bytes={size}", replace(now, segment_bytes=size)
    for days in _RETENTION_DAYS if config.delete else ():
        if days * _DAY_MS != now.retention_ms:
            yield f"retention.ms={days * _DAY_MS}", replace(now, retention_ms=days * _DAY_MS)
    if now.retention_bytes > 1:
        for size in (now.retention_bytes // 2, now.retention_bytes * 2):
            yield f"retention.bytes={size}", replace(now, retention_bytes=size)
