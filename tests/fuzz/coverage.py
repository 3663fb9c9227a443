"""The same targets guided by coverage: `python -m tests.fuzz.coverage TARGET [OPTIONS OF LIBFUZZER]`; needs atheris.

Sees branches of Python only: kernels are compiled, and are fed by `tests.fuzz` alone.
"""

import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from cleanerd import format as decoders
from cleanerd import kernels


def _import_all(package: ModuleType, but: str = "") -> None:
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != but:
            importlib.import_module(f"{package.__name__}.{module.name}")


def main() -> None:
    """Feed until something is wrong, or `-runs=N` is over; libFuzzer ends the process."""
    try:
        import atheris  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        sys.exit("atheris is missing: pip install 'cleanerd[fuzz]'")
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(
        include=["cleanerd.format"]
    ):  # before the kernels import them as they are
        _import_all(decoders)
    _import_all(kernels, but="reference")  # numba cannot compile what is instrumented
    with atheris.instrument_imports(include=["cleanerd"]):
        from tests.fuzz.targets import all_targets

        target = all_targets()[name]
    with tempfile.TemporaryDirectory() as root:
        corpus, directory = Path(root, "corpus"), Path(root, "input")
        for place in (corpus, directory):
            place.mkdir()
        for number, data in enumerate(target.valid()):
            (corpus / str(number)).write_bytes(data)
        atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: target.feed(data, directory))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
