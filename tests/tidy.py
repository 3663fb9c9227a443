"""Finds what makes code hard to live with: what is long, undocumented, or used by tests alone.

Everything is by name, over the syntax tree: a name that occurs anywhere outside of its own definition counts as used. So
what is found is surely unused, and some of what is unused is not found.
"""

import ast
import graphlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
Sources = Mapping[str, str]
"""Text of Python files by their path below the root."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
_OURS_THOUGH_OUTSIDE = {
    "Enum",
    "IntEnum",
    "IntFlag",
    "Protocol",
    "NamedTuple",
    "BaseModel",
    "object",
    "Exception",
}
"""Base classes from elsewhere that call none of the methods of their subclasses."""


def sources(tree: str) -> dict[str, str]:
    """The Python files below a directory of the repository."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / tree).rglob("*.py"))}


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a file, kept: every search walks it."""
    return ast.parse(text)


def long_files(files: Sources, limit: int) -> dict[str, int]:
    """Files of more lines than that."""
    return {path: lines for path, text in files.items() if (lines := len(text.splitlines())) > limit}


def long_functions(files: Sources, limit: int) -> dict[str, int]:
    """Functions of more lines than that, from `def` to the last line."""
    return {
        f"{path}:{node.name}": lines
        for path, text in files.items()
        for node in ast.walk(parsed(text))
        if isinstance(node, Function)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > limit
    }


def undocumented(files: Sources) -> list[str]:
    """Public modules, classes, functions and methods without a docstring."""
    return [
        f"{path}:{name}"
        for path, text in files.items()
        for name, node in [("module", parsed(text)), *_definitions(parsed(text))]
        if not any(part.startswith("_") for part in name.split("."))
        if isinstance(node, ast.Module | ast.ClassDef | Function)
        if not (isinstance(node, ast.Module) and path.endswith("__main__.py"))
        if not ast.get_docstring(node)
    ]


def shared_type_names(files: Sources) -> dict[str, list[str]]:
    """Public classes and type aliases of the same name in several modules, by name."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path, text in files.items():
        for node in parsed(text).body:
            for name in _defined(node):
                if name[:1].isupper() and not name.isupper():
                    homes[name].append(path)
    return {name: paths for name, paths in homes.items() if len(paths) > 1}


def unused_names(files: Sources) -> list[str]:
    """Functions, classes, methods, fields and constants that nothing in the files mentions."""
    used = sum((_mentions(parsed(text)) for text in files.values()), Counter[str]())
    classes = {
        node.name: node
        for text in files.values()
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.ClassDef)
    }
    found = []
    for path, text in files.items():
        for name, node in _definitions(parsed(text)):
            owner, _, last = name.rpartition(".")
            if last.startswith("__") or (owner and _may_be_called_from_outside(classes[owner], classes)):
                continue
            if used[last] <= _mentions(node)[last]:
                found.append(f"{path}:{name}")
    return found


def untested(files: Sources, tests: Sources) -> list[str]:
    """Modules without a test file of their name, in the place of their package or of its wing."""
    found = []
    for path in map(Path, files):
        wing = Path("tests", *path.parts[1:-1])
        package = Path("tests", *path.parts[1:2]) if len(path.parts) > 2 else wing
        if path.name != "__init__.py" and not any(
            str(place / f"test_{path.name}") in tests for place in (wing, package)
        ):
            found.append(str(path))
    return found


def unused_modules(files: Sources, entry_points: set[str]) -> list[str]:
    """Modules that no other module imports or names in a string."""
    imported = set(entry_points)
    for text in files.values():
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {
                    node.module or "",
                    *(f"{node.module or ''}.{alias.name}" for alias in node.names),
                }
                imported |= {alias.name for alias in node.names if node.level} if node.level else set()
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                imported.add(node.value)
    tails = {name.rpartition(".")[2] for name in imported}  # `from .work import X` says no more
    modules = {
        path: path.removesuffix(".py").replace("/", ".") for path in files if not path.endswith("__init__.py")
    }
    return [
        path
        for path, module in modules.items()
        if not {module, module.rpartition(".")[2]} & (imported | tails)
    ]


def import_circle(files: Sources) -> list[str]:
    """Modules that import each other in a circle, lazily or not: the first that is found, none if there is none."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in files}
    imports: dict[str, set[str]] = {}
    for path, text in files.items():
        module = path.removesuffix(".py").replace("/", ".")
        package = module.rpartition(".")[0].split(".")
        found: set[str] = set()
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                members = {f"{base}.{alias.name}" for alias in node.names}
                found |= members & modules or {base}
        imports[module.removesuffix(".__init__")] = found & modules
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def unused_parameters(files: Sources) -> list[str]:
    """Parameters with a default that no call in the files passes; of functions that are only called, never handed on."""
    calls: dict[str, list[ast.Call]] = defaultdict(list)
    handed_on: set[str] = set()
    for text in files.values():
        called = set()
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.Call):
                called.add(id(node.func))
                calls[_name_of(node.func)].append(node)
            elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in called:
                handed_on.add(_name_of(node))
    found = []
    for path, text in files.items():
        for name, node in _definitions(parsed(text)):
            owner, _, last = name.rpartition(".")
            callee = owner if last == "__init__" else last
            if not isinstance(node, Function) or callee in ({} if last == "__init__" else handed_on):
                continue
            reached = [*calls[callee], *(calls["cls"] + calls["__init__"] if last == "__init__" else [])]
            if (last != "__init__" and last.startswith("__")) or (
                owner and last != "__init__" and not reached
            ):
                continue
            is_bound = bool(owner) and "staticmethod" not in map(_name_of, node.decorator_list)
            for parameter, position in _optional(node, is_bound):
                if not any(_passes(call, parameter, position) for call in [*reached, *calls["partial"]]):
                    found.append(f"{path}:{name}({parameter})")
    return found


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """(name, node) of what a module defines; members of its classes as `Class.member`."""
    for node in tree.body:
        yield from ((name, node) for name in _defined(node))
        if isinstance(node, ast.ClassDef):
            members = (one for one in node.body if not isinstance(one, ast.ClassDef | ast.Assign))
            for member in members:
                for name in _defined(member):
                    yield f"{node.name}.{name}", member


def _defined(node: ast.stmt) -> list[str]:
    """Names that a statement gives to a class, a function or a value."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    return _assigned(node)


def _assigned(node: ast.AST) -> list[str]:
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _mentions(tree: ast.AST) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            found[_name_of(node)] += 1
        elif isinstance(node, ast.keyword) and node.arg:
            found[node.arg] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found[node.value] += 1
    return found


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _may_be_called_from_outside(owner: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> bool:
    """Whether one of its methods may override one of a library, which calls it."""
    for base in owner.bases:
        name = _name_of(base.value if isinstance(base, ast.Subscript) else base)
        if name in classes and classes[name] is not owner:
            if _may_be_called_from_outside(classes[name], classes):
                return True
        elif name not in _OURS_THOUGH_OUTSIDE:
            return True
    return False


def _optional(node: Function, is_bound: bool) -> Iterator[tuple[str, int | None]]:
    """(name, position in a call or None) of the parameters that have a default."""
    ordered = [*node.args.posonlyargs, *node.args.args]
    first = len(ordered) - len(node.args.defaults)
    yield from ((argument.arg, place - is_bound) for place, argument in enumerate(ordered) if place >= first)
    yield from (
        (argument.arg, None)
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if default is not None
    )


def _passes(call: ast.Call, parameter: str, position: int | None) -> bool:
    if any(keyword.arg in {None, parameter} for keyword in call.keywords):
        return True
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return True
    return position is not None and len(call.args) > position
