"""The man page of cleanerctl."""

from cleanerd.cli.ctl.manual import render_verbs_reference
from tests.operate.tools import ROOT


def test_the_man_page_has_every_verb_as_its_file_declares_it() -> None:
    """`render_verbs_reference()` makes what lies between `.SS Queries` and `.SH OPTIONS`."""
    page = (ROOT / "etc/man/cleanerctl.1").read_text()
    assert page[page.index(".SS Queries") : page.index(".SH OPTIONS")] == render_verbs_reference()
