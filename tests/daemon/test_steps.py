"""The steps of a cleaning in the log of a real daemon at level debug: all of them, in order, with their numbers."""

from pathlib import Path

from tests.cleaning.logs import RECORDS, write_logs
from tests.daemon.processes import running, wait_until


def test_each_step_of_a_cleaning_is_logged_with_its_numbers(tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", "t")
    bases = sorted(int(path.stem) for path in (logs / "t-0").glob("*.log"))
    with running(tmp_path / "d", logs, topics={"t": "compact"}, cleanerd_log_level="debug") as daemon:
        wait_until(lambda: daemon.outcomes("t-0") == ["committed"], 60, daemon.output)
        told = [event for event in daemon.events() if event["event"] == "cleaning_step"]
    assert {(event["level"], event["topic"], event["partition"]) for event in told} == {("debug", "t", 0)}
    steps = {event["step"]: event["numbers"] for event in told}
    assert [event["step"] for event in told] == ["plan", "map", "rewrite", "stage", "swap", "end"]
    sources, end = bases[:-1], bases[-1]
    assert (steps["plan"]["first_dirty_offset"], steps["plan"]["round_end"]) == (0, end)
    assert (steps["plan"]["segments"], steps["plan"]["groups"]) == (len(sources), 1)
    assert steps["map"] == {"records": end, "changed_groups": 1}
    assert (steps["rewrite"]["segments"], steps["rewrite"]["into"]) == (sources, 0)
    assert steps["rewrite"]["records_read"] == end > steps["rewrite"]["records_kept"] > 0
    assert steps["rewrite"]["bytes_before"] == steps["plan"]["bytes"] > steps["rewrite"]["bytes_after"]
    assert steps["stage"] == {"groups": 1, "bytes": steps["rewrite"]["bytes_after"]}
    assert steps["swap"] == {
        name: steps["rewrite"][name] for name in ("segments", "into", "bytes_before", "bytes_after")
    }
    assert steps["end"] == {"first_dirty_offset": end}
    assert end < RECORDS
