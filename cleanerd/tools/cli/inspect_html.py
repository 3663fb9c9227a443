"""The findings of `inspect` as one HTML file: plots as inline SVG, light and dark, no scripts, nothing loaded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jinja2

from cleanerd.tools.cli.inspect_tables import answers, date, notes, tables
from cleanerd.units import size

if TYPE_CHECKING:
    from cleanerd.tools.insight.inspect import Inspection


def page(logs: "Sequence[Inspection]") -> str:
    """The whole file."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cleanerd.tools.cli"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": size, "date": date}
    environment.globals |= {"width": 720, "bar": 18, "plot": 120, "zip": zip}
    environment.globals |= {"answers": answers, "tables": tables, "notes": notes}
    return environment.get_template("inspect.html").render(logs=logs)
