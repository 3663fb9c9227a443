"""How large and how dirty logs were at some instant."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizeSample:
    """Of one compacted log, or of all of them together. What is dirty is an upper bound, as in `LogView`."""

    time_ms: int
    size_bytes: int
    clean_bytes: int
    cleanable_bytes: int

    @property
    def dirty_ratio(self) -> float:
        """Cleanable bytes over clean and cleanable ones (rule 1.21); 0 where there are none."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0
