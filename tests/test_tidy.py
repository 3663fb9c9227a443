"""Functions and files stay small enough to be read at once."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FUNCTION_LINES = 60
FILE_LINES = 500
FILES = [path for tree in ("cleanerd", "tests") for path in sorted((ROOT / tree).rglob("*.py"))]


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.name}": lines
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert long == {}


def test_what_tests_import_of_each_other_is_there() -> None:
    """mypy does not say so of tests, and the one that lacks it may be run once a week: what moved is in `tests/harness`."""
    modules = {str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in FILES}
    packages = {name.removesuffix(".__init__") for name in modules if name.endswith(".__init__")}
    missing = {
        f"{path.relative_to(ROOT)}:{node.lineno}": node.module
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests")
        for name in node.names
        if f"{node.module}.{name.name}" not in modules
        if node.module in packages or node.module not in modules
    }
    assert missing == {}


def test_files_are_short() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}


_CHANGING = {
    "chmod", "chown", "lchown", "link", "makedirs", "mkdir", "mkfifo", "mknod", "remove", "rename", "replace", "rmdir",
    "symlink", "truncate", "unlink", "utime", "write_bytes", "write_text", "rmtree", "copy", "copyfile", "move",
    "memmap", "mkdtemp", "mkstemp",
}  # fmt: skip
"""Calls of `os`, `shutil`, `tempfile`, and of paths, that take a path and change what is there."""
_ELSEWHERE = {
    "cleanerd/broker_agent/attach.py": "a file in the JVM's working directory or /tmp, which its protocol demands",
    "cleanerd/broker_agent/meeting.py": "the cache directory",
    "cleanerd/cli/output.py": "/dev/null",
    "cleanerd/daemon/api/control_socket.py": "the control socket's directory",
    "cleanerd/daemon/process.py": "the state directory",
    "cleanerd/daemon/store.py": "the state directory",
    "cleanerd/env/cache.py": "the cache directory, which nobody else may write to",
    "cleanerd/env/turns.py": "a file of one user among the temporary ones",
    "cleanerd/kernels/compiled.py": "the cache directory",
    "cleanerd/kernels/kernel_cache.py": "the cache directory",
    "cleanerd/spark_runtime/block_store.py": "the session's scratch directory",
    "cleanerd/spark_runtime/class_archive.py": "the cache directory",
    "cleanerd/spark_runtime/executor.py": "the session's scratch directory",
    "cleanerd/spark_runtime/forked_daemon.py": "/dev/null",
    "cleanerd/spark_runtime/java.py": "the cache directory",
    "cleanerd/spark_runtime/scratch.py": "the session's scratch directory",
    "cleanerd/spark_runtime/shared_value.py": "the session's scratch directory",
    "cleanerd/spark_runtime/task_queue.py": "the session's scratch directory",
    "cleanerd/tools/cli/inspect.py": "a file that an option names",
    "cleanerd/tools/demo/run.py": "a directory that the demo has made",
    "cleanerd/tools/spark/parquet.py": "a copy elsewhere",
}
"""Modules that write only where nobody else may, and where that is."""
_DIRECTORIES = {
    # a name that is not there is made, or a directory deleted: rmtree goes by descriptors, and through no link
    "cleanerd/tools/client/writer.py": {"makedirs"},
    "cleanerd/tools/insight/salvage.py": {"makedirs", "rmdir"},
}


def test_nothing_in_a_log_directory_is_changed_by_its_path() -> None:
    """Whoever may write there could put a link at any name: `env/files.py` makes and opens files (architecture 2)."""
    found = {
        f"{name}:{call.lineno}": ast.unparse(call)
        for path in FILES
        if (name := str(path.relative_to(ROOT))).startswith("cleanerd/") and name not in _ELSEWHERE
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and _changes_by_path(call) not in {None, *_DIRECTORIES.get(name, ())}
    }
    assert found == {}


_GIVES_AWAY = {
    "broker_agent/session.py:_open_pipe": "a FIFO of ours in a directory of ours",
    "cli/privileges.py:_make": "a directory that was just made, where nobody else could exchange it",
    "env/cache.py:write_whole": "the cache directory, which nobody else may write to",
    "env/files.py:new_file": "what it has made",
    "env/files.py:_adopt_owner": "the same",
    "storage/lock.py:_create": "what it has made",
    "storage/unlocked.py:has_leases": "a file that never has a name",
}
"""Functions that give owner or permissions to a descriptor, and where that is from: never from a name in a log directory."""


def test_only_what_was_just_made_is_given_away() -> None:
    """By the descriptor that made it: by its name it may be another file a moment later (architecture 2)."""
    found = {
        f"{path.relative_to(ROOT / 'cleanerd')}:{function.name}"
        for path in FILES
        if path.is_relative_to(ROOT / "cleanerd")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        and re.search(r"(fchown|fchmod|_adopt_owner)\(", "".join(map(ast.unparse, function.body)))
    }
    assert found == set(_GIVES_AWAY)


def _changes_by_path(call: ast.Call) -> str | None:
    """The call, if it changes what is at a path; not if it is given an open directory, or a descriptor."""
    words = {word.arg for word in call.keywords}
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = (
        call.func.value.id
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
        else ""
    )
    if words & {"dir_fd", "src_dir_fd", "closefd"} or (
        call.args and ast.unparse(call.args[0]).endswith("fd")
    ):
        return None
    if name == "open" and owner == "os":
        if "O_TMPFILE" in ast.unparse(call):
            return None  # it has no name
        return name if re.search(r"O_(CREAT|WRONLY|RDWR|TRUNC|APPEND)", ast.unparse(call)) else None
    if name == "open":
        mode = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
        is_new = bool(call.args) and ast.unparse(call.args[0]).startswith("new_file(")
        return name if not is_new and any(set(ast.unparse(one)) & set("wax+") for one in mode) else None
    if owner in ("os", "shutil", "tempfile", "np") or name in ("write_bytes", "write_text"):
        return name if name in _CHANGING else None
    return None
