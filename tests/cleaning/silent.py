"""A progress that nobody looks at."""

from cleanerd.cleaning.result import LogResult, Step
from cleanerd.format.names import TopicPartition


class Silent:
    """A progress that nobody looks at."""

    def planned(self, tp: TopicPartition, total_bytes: int) -> None:
        """Nothing."""

    def advanced(self, tp: TopicPartition, phase: str, bytes_done_delta: int, records_delta: int) -> None:
        """Nothing."""

    def step(self, step: Step) -> None:
        """Nothing."""

    def finished(self, result: LogResult) -> None:
        """Nothing."""
