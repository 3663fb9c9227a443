"""What lies beside a log directory for installs."""

from pathlib import Path

from cleanerd.env.files import RealFiles
from cleanerd.install.area import Area
from tests.install.world import fresh_install


def test_what_has_no_journal_goes_and_what_has_one_stays(tmp_path: Path) -> None:
    """A process was killed while it prepared a directory: its links would keep the space of segments that are deleted."""
    area = Area(RealFiles(), str(tmp_path / "logs"))
    area.sweep()
    area.make()
    prepared = Path(area.prepared)
    prepared.mkdir()
    (prepared / "00000000000000000000.log").touch()
    area.journal.write(fresh_install())
    area.sweep()
    assert list(prepared.iterdir())
    area.journal.remove()
    area.sweep()
    assert list(tmp_path.iterdir()) == []
