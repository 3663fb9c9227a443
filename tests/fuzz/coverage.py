"""The same targets guided by coverage: `python -m tests.fuzz.coverage TARGET [OPTIONS OF LIBFUZZER]`; needs atheris.

TARGET may be `all`: one after the other, each with these options and in a process of its own; give `-max_total_time=60`.
Sees branches of Python only: kernels are compiled, and are fed by `tests.fuzz` alone.
"""

import importlib
import multiprocessing
import pkgutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from cleanerd import format as decoders
from cleanerd import kernels
from cleanerd.tools import kernels as tools_kernels

_FORK = multiprocessing.get_context("fork")  # to instrument everything takes longer than a short run


def _import_all(package: ModuleType) -> None:
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def main() -> None:
    """Feed until something is wrong, or `-runs=N` is over. Exit code 1 with a failure."""
    try:
        import atheris  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        sys.exit("atheris is missing: pip install 'cleanerd[fuzz]'")
    wanted, *options = sys.argv[1:]
    with atheris.instrument_imports(
        include=["cleanerd.format"]
    ):  # before the kernels import them as they are
        _import_all(decoders)
    for package in (kernels, tools_kernels):  # numba cannot compile what is instrumented
        _import_all(package)
    with atheris.instrument_imports(include=["cleanerd"]):
        from tests.fuzz.targets import Target, all_targets

        targets = all_targets()

    def fuzz(target: Target) -> None:
        with tempfile.TemporaryDirectory() as root:
            corpus, directory = Path(root, "corpus"), Path(root, "input")
            for place in (corpus, directory):
                place.mkdir()
            for number, data in enumerate(target.valid()):
                (corpus / str(number)).write_bytes(data)
            atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: target.feed(data, directory))
            atheris.Fuzz()  # libFuzzer ends the process

    failed = []
    for name in list(targets) if wanted == "all" else [wanted]:
        process = _FORK.Process(target=fuzz, args=(targets[name],))
        process.start()
        process.join()
        print(f"{name}: {process.exitcode}", file=sys.stderr)
        failed += [name] if process.exitcode else []
    sys.exit(f"failed: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
