"""What `inspect` found as one HTML file: plots as inline SVG, light and dark, no scripts, nothing from anywhere else."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import jinja2

from cleanerd.tools.cli.inspect_tables import answers, date
from cleanerd.units import key_text, size

if TYPE_CHECKING:
    from cleanerd.tools.insight.inspect import Inspection

_Rows = list[tuple[str, ...]]


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
    environment.globals |= {"width": 720, "bar": 18, "plot": 120, "answers": answers, "tables": _tables}
    return environment.get_template("inspect.html").render(logs=logs)


def _tables(log: "Inspection") -> Iterator[tuple[str, tuple[str, ...], _Rows]]:
    """Caption, heads and rows of each."""
    hot: _Rows = [
        (key_text(one.key, one.key_length), f"{one.records:,}", size(one.bytes), size(one.superseded_bytes))
        for one in log.hot_keys
    ]
    yield "Hot keys", ("key", "records", "size", "superseded"), hot
    prefixes: _Rows = [
        (f"{key_text(one.prefix)}...", f"{one.records:,}", size(one.bytes), size(one.superseded_bytes))
        for one in log.prefixes
    ]
    yield "Keys that begin alike", ("prefix", "records", "size", "superseded"), prefixes
    ages: _Rows = [
        (f"below {band.below_days} days" if band.below_days else "older", f"{band.records:,}",
         size(band.bytes), size(dead.bytes))
        for band, dead in zip(log.superseded_ages, log.tombstone_ages, strict=True)
        if band.records or dead.records
    ]  # fmt: skip
    yield "Superseded since, and tombstones by age", ("age", "records", "superseded", "tombstones"), ages
    recoded: _Rows = [
        (
            f"{one.codec}{' (of the topic)' * one.is_of_topic}, batches of {size(one.batch_bytes)}",
            size(one.size_bytes),
            f"{'-' * (one.saved_bytes < 0)}{size(abs(one.saved_bytes))}",
        )
        for one in log.alternatives
    ]
    yield "In other batches", ("codec", "size", "saved"), recoded
