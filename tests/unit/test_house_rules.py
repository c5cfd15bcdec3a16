"""The rules of the house, read off the source: who imports whom, who may say what."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
import tokenize
import tomllib
import typing
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import agentstore
from agentstore.settings import Settings, StoreOptions

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "agentstore"
REVISIONS = CHECKOUT / "alembic" / "versions"


def modules() -> dict[str, Path]:
    """Give every module of the package by its name without ``agentstore.``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] != "_alembic":
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def offenders(rule: Callable[[str], Any]) -> dict[str, Any]:
    """Give the modules for which the rule finds something, with what it finds."""
    found = {module or "agentstore": rule(module) for module in MODULES}
    return {module: what for module, what in found.items() if what}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def at_runtime(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what is run, functions included, and leave out what only a type checker reads."""
    yield node
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children: list[ast.AST] = [*node.orelse]
    else:
        children = [*ast.iter_child_nodes(node)]
    for child in children:
        yield from at_runtime(child)


@cache
def imported(path: Path) -> frozenset[str]:
    """Give what a file imports: modules by their full names."""
    found: set[str] = set()
    for node in at_runtime(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                inside = full.removeprefix("agentstore.") in MODULES
                found.add(full if inside else str(node.module))
    return frozenset(found)


def ours(path: Path) -> set[str]:
    return {
        name.removeprefix("agentstore").removeprefix(".")
        for name in imported(path)
        if name.split(".")[0] == "agentstore"
    }


# --- Imports ---------------------------------------------------------------------------------


def house() -> dict[str, int]:
    """Read the storeys of the map in docs/architecture.md, from the top of the drawing down."""
    text = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = text.partition("## The map")[2].partition("```text\n")[2].partition("```")[0]
    return {line.split()[0]: storey for storey, line in enumerate(drawing.splitlines())}


def room(module: str) -> str:
    """Give the package at the top that a module stands in, or the module itself."""
    return module.partition(".")[0]


def rooms_of(module: str) -> set[str]:
    """Give the packages that a module imports from."""
    return {room(name) for name in ours(MODULES[module]) if name}


def test_the_map_shows_every_package_and_no_other():
    assert house().keys() == {room(module) for module in MODULES if module}


def test_imports_go_one_way():
    storeys = house()

    def from_below(module: str) -> set[str]:
        here = storeys.get(room(module), 99)
        return {name for name in rooms_of(module) if storeys[name] > here}

    assert offenders(from_below) == {}


def test_nothing_imports_the_package_s_front_door():
    assert offenders(lambda module: "" in ours(MODULES[module])) == {}


@pytest.mark.parametrize("package", ["errors", "records"])
def test_what_everything_stands_on_imports_errors_alone(package):
    modules = [m for m in MODULES if m == package or m.startswith(f"{package}.")]
    named = {name.removeprefix(package) for module in modules for name in ours(MODULES[module])}
    assert {name for name in named if not name.startswith(".")} <= {"errors"}


def test_no_two_modules_import_each_other_by_whatever_way_round():
    graph = {module: ours(path) - {module} for module, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way, module))
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize(
    ("who", "whom"),
    [
        ("repositories", "database"), ("repositories", "migrations"),
        ("migrations", "repositories"), ("engines", "models"),
        ("engines", "repositories"), ("engines.base", "engines.sqlite"),
        ("engines.base", "engines.postgresql"), ("engines.sqlite", "engines.postgresql"),
        ("engines.postgresql", "engines.sqlite"), ("execution", "repositories"),
    ],
)  # fmt: skip
def test_packages_that_have_no_business_with_each_other_have_no_door(who, whom):
    def within(module: str, package: str) -> bool:
        return f"{module}.".startswith(f"{package}.")

    def door(module: str) -> bool:
        names = ours(MODULES[module])
        return within(module, who) and any(within(name, whom) for name in names)

    assert {who, whom} <= MODULES.keys()
    assert offenders(door) == {}


def test_a_repository_imports_no_runner():
    runners = {name for name in MODULES if name.startswith("execution.") and "runner" in name}
    assert len(runners) >= 2
    assert offenders(lambda m: m.startswith("repositories") and ours(MODULES[m]) & runners) == {}


def test_the_core_imports_no_command_line_and_no_tests():
    def edge(module: str) -> set[str]:
        return rooms_of(module) & {"cli", "testing"} - {room(module)}

    assert offenders(edge) == {"__main__": {"cli"}}


@pytest.mark.parametrize("path", sorted(REVISIONS.glob("*.py")), ids=lambda path: path.stem)
def test_a_revision_imports_nothing_that_moves_on(path):
    assert ours(path) <= {"database.revisions"}
    others = {name.split(".")[0] for name in imported(path)} - sys.stdlib_module_names
    assert others <= {"agentstore", "alembic", "sqlalchemy"}


@pytest.mark.parametrize("path", sorted(REVISIONS.glob("*.py")), ids=lambda path: path.stem)
def test_a_revision_never_compares_each_row_with_each_other_one(path):
    """PostgreSQL does so for NOT IN of a query, once its rows are more than work_mem holds."""
    assert not re.search(r"not_in\(|NOT IN \(\s*SELECT", path.read_text(), re.IGNORECASE)


def test_what_the_package_imports_is_what_it_depends_on():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {re.split(r"[\[<>=~! ]", line)[0] for line in project["dependencies"]}
    owners = metadata.packages_distributions()
    tops = {name.split(".")[0] for path in MODULES.values() for name in imported(path)}
    foreign = tops - {"agentstore", *BROUGHT} - set(sys.stdlib_module_names)
    assert {owner.lower() for top in foreign for owner in owners[top]} <= wanted


PROMISED = {"_mapping", "_fields"}
"""SQLAlchemy's rows and Python's named tuples document these, underscore and all."""


def private_names(module: str, *, defined: bool) -> set[str]:
    """Give the private names that a module defines; or those that it asks of anything."""
    found: set[str] = set()
    for node in ast.walk(parsed(MODULES[module])):
        if defined:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                found |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and "attr" in ast.unparse(node.func):
            found |= {str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)}
    return {name for name in found if re.fullmatch("_[a-z][a-z_]*", name)}


def test_only_one_module_uses_private_names_of_other_packages():
    own = set[str]().union(*(private_names(module, defined=True) for module in MODULES))
    used = offenders(lambda module: private_names(module, defined=False) - own - PROMISED)
    assert used.keys() == {"values.types"}
    assert {"_handle_dbapi_exception", "_proxied", "_prepared_idx"} < used.popitem()[1]


EXTRAS = {
    "cli.ui": {"uvicorn"},
    "execution.telemetry": {"opentelemetry"},
    "explorer.application": {"markupsafe", "starlette"},
    "explorer.cards": {"markupsafe"},
    "explorer.conversation": {"starlette"},
    "explorer.pages": {"markupsafe", "starlette"},
    "explorer.rendering": {"jinja2", "markdown_it", "markupsafe", "starlette"},
    "explorer.sharing": {"markdown_it", "markupsafe"},
    "explorer.users": {"starlette"},
    "integrations.a2a": {"a2a", "cryptography", "google"},
    "integrations.adk": {"google"},
    "integrations.agent_framework": {"agent_framework"},
    "integrations.agentos": {"agentos"},
    "integrations.agentscope": {"agentscope"},
    "integrations.chatkit": {"chatkit", "pydantic"},
    "integrations.langchain": {"langchain_core"},
    "integrations.langgraph.calls": {"langgraph"},
    "integrations.langgraph.savers": {"langchain_core", "langgraph"},
    "integrations.langgraph.serializer": {"langchain_core", "langgraph", "ormsgpack", "pydantic"},
    "integrations.langgraph.stores": {"langgraph"},
    "integrations.llama_index": {"llama_index"},
    "integrations.openai": {"agents"},
    "integrations.pydantic_ai": {"pydantic_ai"},
    "integrations.strands": {"strands"},
    "moving.frameworks.langgraph": {"ormsgpack"},
    "testing.contract": {"pytest"},
    "tui.application": {"textual"},
    "tui.conversation": {"textual"},
    "tui.lists": {"markdown_it", "textual"},
    "tui.screens": {"textual"},
    "values.embeddings": {"numpy"},
    "values.genai": {"genai_prices"},
}
"""What extras bring, by the modules that import it, and no others do."""

BROUGHT = {top for tops in EXTRAS.values() for top in tops}

HEAVY = {
    "a2a", "agent_framework", "agentos", "agentscope", "chatkit", "cryptography", "google",
    "llama_index", "strands",
}  # fmt: skip
"""Of these, what is not installed here: tests/frameworks imports it."""


def test_only_one_module_imports_what_an_extra_brings():
    def extras(module: str) -> set[str]:
        tops = {name.split(".")[0] for name in imported(MODULES[module])}
        return tops & BROUGHT

    assert offenders(extras) == EXTRAS


def test_adapters_use_what_a_store_offers_to_everybody():
    public = {"errors", "records", "retention", "aio", "transactions", "turns"}
    public |= {"values.embeddings"}

    def inner(module: str) -> set[str]:
        if not module.startswith("integrations"):
            return set()
        used = {name for name in ours(MODULES[module]) if room(name) != "integrations"}
        return used - public

    assert offenders(inner) == {}


LAZY = (
    "agents", "alembic", "jinja2", "mako", "typer", "click", "rich", "psycopg", "aiosqlite",
    "opentelemetry", "genai_prices", "langchain_core", "langgraph", "pydantic_ai", "sqlalchemy.orm",
    "starlette", "textual",
)  # fmt: skip


def test_importing_the_package_imports_nothing_that_only_some_need():
    assert loaded("import agentstore") == ""


def test_a_store_that_finds_its_file_at_head_imports_nothing_that_only_some_need(sqlite_template):
    use = f"""
from agentstore import Store
with Store("sqlite:///{sqlite_template}") as store:
    store.sessions.list()
"""
    assert loaded(use) == ""


def test_the_version_is_that_of_the_project_and_is_looked_up_when_it_is_asked_for():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert agentstore.__version__ == project["version"]
    assert "__version__" in dir(agentstore)
    code = "import sys; before = {*sys.modules}; import agentstore; print({*sys.modules} - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert "agentstore" in done.stdout
    assert "importlib.metadata" not in done.stdout


def loaded(code: str) -> str:
    code += f"\nimport sys; print(*sorted(sys.modules.keys() & {set(LAZY)}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


# --- Engines and SQL -------------------------------------------------------------------------

ENGINE = re.compile(
    r"(sqlite3?|pysqlite|aiosqlite|postgres(ql)?|pg|psycopg[23]?|asyncpg)([:+]\S*)?"
)
DRIVERS = {"sqlite3", "aiosqlite", "psycopg", "asyncpg"}
MAY_NAME_ENGINES = {
    ("settings", "sqlite:///agentstore.db"): "the database of whoever names none",
}


def engine_names(module: str) -> set[str]:
    tree = parsed(MODULES[module])
    texts = docstrings(tree)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in texts and ENGINE.fullmatch(node.value):
                found.add(node.value)
        elif isinstance(node, ast.Attribute) and node.attr == "name":
            owner = ast.unparse(node.value)
            if owner == "dialect" or owner.endswith(".dialect"):
                found.add(f"{owner}.name")
    return found


def docstrings(tree: ast.Module) -> set[int]:
    """Give the strings that stand alone as a statement: documentation, not code."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def knows_engines(module: str) -> bool:
    types = ("values.types", "values.types", "database.revisions")
    return module.startswith("engines") or module in types


def test_outside_the_engines_no_code_names_an_engine():
    found = {
        (module, name)
        for module in MODULES
        if not knows_engines(module)
        for name in engine_names(module)
    }
    assert found == MAY_NAME_ENGINES.keys()


def test_outside_the_engines_nothing_imports_a_driver():
    def drivers(module: str) -> set[str]:
        if module.startswith("engines"):
            return set()
        names = imported(MODULES[module])
        return {n for n in names if n.split(".")[0] in DRIVERS or "sqlalchemy.dialects" in n}

    assert offenders(drivers) == {}


SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|DROP|ALTER|TRUNCATE|EXPLAIN|VACUUM)\s",
    re.IGNORECASE,
)
RAW = {"text", "literal_column", "exec_driver_sql", "execute", "executescript", "DDL"}


def built_sql(module: str) -> list[str]:
    """Find SQL that is put together from pieces of text."""
    found = []
    for node in ast.walk(parsed(MODULES[module])):
        if isinstance(node, ast.JoinedStr):
            first = node.values[0] if node.values else None
            if isinstance(first, ast.Constant) and SQL.match(str(first.value)):
                # A sentence may begin with such a word; a statement does not end in a full stop.
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and node.args:
            function = node.func
            named = function.attr if isinstance(function, ast.Attribute) else ""
            named = function.id if isinstance(function, ast.Name) else named
            plain = isinstance(function, ast.Name) or named not in ("text",)
            if named in RAW and plain and pieced(node.args[0]):
                found.append(ast.unparse(node))
    return sorted(found)


def pieced(node: ast.expr) -> bool:
    """Say whether an expression puts text together."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
        sides = (node.left, node.right)
        return any(isinstance(s, ast.JoinedStr | ast.Constant) or pieced(s) for s in sides)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("format", "join", "replace", "format_map")
    )


PRAGMAS = {
    "engines.sqlite.append": ["cursor.execute(f'PRAGMA {name}')"],
    "engines.sqlite.files": ["cursor.execute(f'PRAGMA busy_timeout={int(patience)}')",
        "cursor.execute(f'PRAGMA busy_timeout={int(settings.busy_timeout * 1000)}')",
        "cursor.execute(f'PRAGMA journal_size_limit={LONGEST_LOG}')",
        "cursor.execute(f'PRAGMA synchronous={settings.synchronous}')"],
    "engines.sqlite.search": [
        "connection.exec_driver_sql(f'PRAGMA busy_timeout = {int(patience)}')",
    ],
}  # fmt: skip
"""A pragma takes no parameters. These get a number, and names that were checked or are our own."""


ABOUT_ANY_TABLE = {
    "engines.postgresql.checks",
    "engines.postgresql.moving",
    "engines.sqlite.moving",
}
"""They read and load whichever table comes: names are quoted by one function, values are bound."""


def test_no_text_is_put_together_to_sql():
    found = offenders(built_sql)
    assert found.keys() >= ABOUT_ANY_TABLE
    assert {module: sql for module, sql in found.items() if module not in ABOUT_ANY_TABLE} == (
        PRAGMAS
    )


@pytest.mark.parametrize(
    "code",
    [
        "connection.execute(text(f'SELECT {x}'))",
        "connection.exec_driver_sql('SELECT %s' % x)",
        "connection.exec_driver_sql('SELECT ' + x)",
        "literal_column('{}'.format(x))",
        "query = f'delete from {x}'",
    ],
)
def test_sql_that_is_put_together_would_be_found(code, tmp_path, monkeypatch):
    path = tmp_path / "bad.py"
    path.write_text(code)
    monkeypatch.setitem(MODULES, "bad", path)
    assert built_sql("bad")


def calls(module: str) -> Iterator[str]:
    """Give the last words of what a module calls."""
    for node in ast.walk(parsed(MODULES[module])):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2]


QUERYING = (
    "repositories",
    "engines",
    "migrations",
    "database.revisions",
    "moving.copying",
    "moving.copy_ends",
    "moving.copy_ends",
    "moving.frameworks",  # which read other programs' tables
)


def test_queries_are_in_repositories_and_engines_only():
    def queries(module: str) -> set[str]:
        if module.startswith(QUERYING):
            return set()
        return {"execute", "exec_driver_sql", "executemany"}.intersection(calls(module))

    assert offenders(queries) == {}


def test_the_schema_has_one_source_of_change():
    assert offenders(lambda module: {"create_all", "drop_all"}.intersection(calls(module))) == {}


def test_only_the_command_line_prints():
    assert offenders(lambda module: room(module) != "cli" and "print" in calls(module)) == {}


def test_a_repository_never_sleeps_or_ends_a_transaction():
    forbidden = {"sleep", "commit", "rollback", "close", "connect"}

    def found(module: str) -> set[str]:
        inside = module.startswith("repositories")
        return forbidden.intersection(calls(module)) if inside else set()

    assert offenders(found) == {}


# --- Words --------------------------------------------------------------------------


def test_what_is_public_is_documented():
    assert offenders(lambda module: [*undocumented(parsed(MODULES[module]), "")]) == {}
    assert offenders(lambda module: not ast.get_docstring(parsed(MODULES[module]))) == {}


def undocumented(node: ast.AST, place: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if child.name.startswith(("_", "test_")):
                continue
            name = f"{place}{child.name}"
            if [ast.unparse(each) for each in child.decorator_list] == ["overload"]:
                continue  # the words are those of what is overloaded
            if not ast.get_docstring(child):
                yield name
            if isinstance(child, ast.ClassDef):
                yield from undocumented(child, f"{name}.")


def test_what_a_module_says_it_offers_is_there():
    def missing(module: str) -> list[str]:
        if EXTRAS.get(module, set()) & HEAVY:
            return []
        found = importlib.import_module(f"agentstore.{module}".rstrip("."))
        names = getattr(found, "__all__", [])
        return [name for name in names if not hasattr(found, name) or names.count(name) > 1]

    assert offenders(missing) == {}


ELSEWHERE = set(
    """ainvoke astream catchup english flight flights get_isolation_level id_0 invoke iter_x jsonb
    kind_0 omit_expired otel potential quorum startup timestamptz to_tsvector wal_sender_timeout
    _kcount async_repositories pyi""".split()  # noqa: SIM905 - a list has each in quotes
)
"""Words of engines and frameworks, and examples, that stand in docstrings like names of ours."""


def test_what_is_written_about_the_code_names_what_is_there():
    """Names of modules that were merged, or of what was renamed, stay behind in texts otherwise."""
    code, written = set(), []
    for path in MODULES.values():
        documents = {
            (node.lineno, node.col_offset)
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        code.update((path.stem, path.parent.name))
        with path.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                if token.type == tokenize.COMMENT or token.start in documents:
                    written.append((path, token.string))
                elif token.type in (tokenize.NAME, tokenize.STRING):
                    code.update(re.findall(r"\w+", token.string))
    unknown = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path, text in written
        for name in re.findall(r"``([a-z_][a-z_0-9.]*)``", text)
        if name.partition(".")[0] not in sys.stdlib_module_names
        if not {*name.strip(".").split(".")} <= code | ELSEWHERE
    }
    assert not unknown


PACKAGES = sorted(path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_a_package_lists_modules_and_names_that_it_has(path):
    listed = re.findall(r"^- ``(\w+)``", ast.get_docstring(parsed(path)) or "", re.MULTILINE)
    there = {each.stem for each in path.parent.iterdir()}
    for module in path.parent.glob("*.py"):
        there |= {getattr(node, "name", "") for node in parsed(module).body}
    assert {*listed} <= there


def test_no_name_says_nothing():
    empty = ("Manager", "Helper", "Util", "Utils", "Handler", "Service", "Processor")

    def found(module: str) -> list[str]:
        if module.startswith("integrations"):  # what the frameworks call it
            return []
        classes = [n for n in ast.walk(parsed(MODULES[module])) if isinstance(n, ast.ClassDef)]
        return [node.name for node in classes if node.name.endswith(empty)]

    assert offenders(found) == {}


def test_the_keyword_arguments_of_a_store_are_its_settings():
    options = typing.get_type_hints(StoreOptions)
    settings = typing.get_type_hints(Settings)
    fields = [field.name for field in dataclasses.fields(Settings)]
    assert options == {name: settings[name] for name in fields}
    assert [*options] == fields


def test_every_setting_has_a_default_and_a_word_of_explanation():
    Settings()
    attributes = (inspect.getdoc(Settings) or "").partition("Attributes:\n")[2]
    documented = re.findall(r"^    (\w+): ", attributes, re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(Settings)]
