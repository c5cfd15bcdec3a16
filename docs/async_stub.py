"""Write ``agentstore/async_repositories.pyi`` from the repositories: ``python -m docs.async_stub``.

The asynchronous repositories are made when the program runs, so type checkers and editors read
them here. Each method is written as in the source, but for ``async`` and for what it gives; a test
compares the file with what this program prints.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

from agentstore import aio, repositories

STUB = Path(aio.__file__).with_name("async_repositories.pyi")
COMMAND = "python -m docs.async_stub"
HEAD = f'''"""The asynchronous repositories, as type checkers and editors see them.

``{COMMAND}`` wrote this file; ``agentstore.aio`` makes the classes when the
program runs. What a method does, returns and raises is as where it is written.
"""
'''

Method = ast.FunctionDef


class Stub:
    """The classes that are written so far, and what they import."""

    def __init__(self) -> None:
        """Begin with what every class needs."""
        self.imports = {
            "AsyncGenerator": "from collections.abc import AsyncGenerator",
            "AsyncRepository": "from agentstore.aio import AsyncRepository",
        }

    def text(self) -> str:
        """Give the file."""
        offered = [getattr(repositories, name) for name in repositories.__all__]
        classes = "\n\n".join(self._class(kind) for kind in offered)
        return _formatted("\n".join([HEAD, *self.imports.values(), "", classes]))

    def _class(self, kind: type) -> str:
        asynchronous = aio.lifted(kind)
        lines = [
            f"class {asynchronous.__name__}(AsyncRepository):",
            indent(f'"""{inspect.cleandoc(kind.__doc__ or "")}\n"""', " " * 4),
            "    __slots__ = ()",
        ]
        ours = set(vars(asynchronous))
        for owner in kind.__mro__:
            module = sys.modules[owner.__module__]
            for name in vars(owner):
                if name in ours and inspect.isfunction(getattr(asynchronous, name)):
                    ours.remove(name)
                    lines += self._method(module, owner, name)
        return "\n".join(lines)

    def _method(self, module: ModuleType, owner: type, name: str) -> Iterator[str]:
        made = getattr(owner, name)
        over_pages = hasattr(made, "pages")
        written = _definitions(module, owner)[made.pages.method if over_pages else name]
        overloads = [each for each in written if "overload" in map(ast.unparse, _decorators(each))]
        if overloads:
            self.imports["overload"] = "from typing import overload"
        for method in overloads or written:
            taken_out = over_pages or inspect.isgeneratorfunction(_body(made))
            gives = _item(method.returns) if taken_out else method.returns
            assert gives is not None, f"{made.__qualname__} says what it gives"
            self._import(module, method.args, gives)
            if overloads:
                yield "    @overload"
            arguments, result = ast.unparse(method.args), ast.unparse(gives)
            if over_pages:
                yield f"    def {name}({arguments}) -> AsyncGenerator[{result}, None]:"
            else:
                yield f"    async def {name}({arguments}) -> {result}:"
            said = inspect.cleandoc(made.__doc__ or "").replace("\\", "\\\\")
            if overloads and method is not overloads[0]:  # once for all of them
                said = said.partition("\n\n")[0]
            said += "\n" if "\n" in said else ""
            yield indent(f'"""{said}"""' if said else "...", " " * 8)

    def _import(self, module: ModuleType, *parts: ast.AST) -> None:
        """Import what annotations and defaults name, from where the module has it."""
        for node in (each for part in parts for each in ast.walk(part)):
            if not isinstance(node, ast.Name) or hasattr(builtins, node.id):
                continue
            line = _imports(module).get(node.id, f"from {module.__name__} import {node.id}")
            known = self.imports.setdefault(node.id, line)
            assert known == line, f"{node.id} is two things: {known}, and {line}"


def _decorators(method: Method) -> list[ast.expr]:
    return method.decorator_list


def _body(made: Any) -> Any:
    return made.operation.body if hasattr(made, "operation") else None


def _item(returns: ast.expr | None) -> ast.expr:
    """Give the T of ``Page[T]``, ``Body[T]`` or ``Generator[..., ..., T]``."""
    assert isinstance(returns, ast.Subscript), "what is gathered or paged says of what"
    inside = returns.slice
    return inside.elts[-1] if isinstance(inside, ast.Tuple) else inside


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


@cache
def _imports(module: ModuleType) -> dict[str, str]:
    """Give the imports of a module, by the name that they bind; also those for type checkers."""
    found = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for each in node.names:
                alone = ast.unparse(
                    ast.ImportFrom(node.module, [each], node.level)
                    if isinstance(node, ast.ImportFrom)
                    else ast.Import([each])
                )
                found[each.asname or each.name.partition(".")[0]] = alone
    return found


@cache
def _definitions(module: ModuleType, owner: type) -> dict[str, list[Method]]:
    """Give the functions that a class is written with, overloads among them."""
    (body,) = (
        node.body
        for node in _tree(module).body
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    )
    found: dict[str, list[Method]] = {}
    for node in body:
        if isinstance(node, Method):
            found.setdefault(node.name, []).append(node)
    return found


def _formatted(text: str) -> str:
    for order in (["check", "--select", "I", "--fix"], ["format"]):
        command = [sys.executable, "-m", "ruff", *order, "--quiet", "--stdin-filename", str(STUB)]
        done = subprocess.run(  # noqa: S603
            [*command, "-"], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    STUB.write_text(Stub().text(), encoding="utf-8")
