"""What the synchronous store can do, the asynchronous one can do, by the same words."""

import ast
import asyncio
import inspect
import pickle
import pydoc
import typing
from collections.abc import AsyncGenerator, Callable, Generator
from functools import cached_property
from typing import Any

import pytest

from agentstore import AsyncStore, Store, aio, repositories, testing
from agentstore.aio import AsyncRepositories, AsyncRepository
from agentstore.engines.base.dialect import Mode
from agentstore.records import DeletionReceipt, MessageRecord, Page, SearchHit
from agentstore.repositories import Users
from agentstore.repositories.operations import Operation, Repository, reads
from agentstore.repositories.scopes import scoped
from agentstore.transactions import Repositories
from docs import async_stub


class NoRunner:
    """Stands where a runner would, for those who only look."""


def repositories_of(store: object, kind: type = Repositories) -> dict[str, Any]:
    """Give the repositories of a store or a transaction by their names."""
    members = vars(kind).items()
    names = [name for name, member in members if isinstance(member, cached_property)]
    return {name: getattr(store, name) for name in names}


SYNC = repositories_of(Repositories(NoRunner()))
ASYNC = repositories_of(AsyncRepositories(NoRunner()), AsyncRepositories)
NAMES = sorted(SYNC)


def methods(kind: type) -> dict[str, object]:
    """Give what a class and its bases, short of the common one, offer to callers."""
    return {
        name: getattr(kind, name)
        for name in dir(kind)
        if not name.startswith("_")
        and inspect.isfunction(getattr(kind, name))
        and not hasattr(Repository, name)
    }


def test_both_stores_have_the_same_repositories():
    assert SYNC.keys() == ASYNC.keys()
    assert len(SYNC) >= 6


def test_the_contract_suite_covers_every_repository():
    assert sorted(testing.REPOSITORIES) == NAMES


def test_every_repository_that_there_is_belongs_to_a_store():
    offered = {getattr(repositories, name) for name in repositories.__all__}
    assert offered == {type(repository) for repository in SYNC.values()}
    classes = {
        kind
        for _, kind in inspect.getmembers(aio, inspect.isclass)
        if issubclass(kind, AsyncRepository) and kind is not AsyncRepository
    }
    assert classes == {type(repository) for repository in ASYNC.values()}


@pytest.mark.parametrize("name", NAMES)
def test_an_asynchronous_repository_lifts_its_own_namesake(name):
    kind = type(ASYNC[name])
    assert kind.repository is type(SYNC[name])
    assert kind.__name__ == f"Async{kind.repository.__name__}"


APART = {"users": {"Quotas", "ApiKeys"}, "messages": {"Streams"}}
"""Methods of one subject that are written in a class, and a module, named after it."""


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_written_in_the_class_that_offers_it(name):
    kind = type(SYNC[name])
    written_in = {method.__qualname__.rpartition(".")[0] for method in methods(kind).values()}
    assert written_in - APART.get(name, set()) == {kind.__name__}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_lifted_under_its_own_name(name):
    own, lifted = methods(type(SYNC[name])), methods(type(ASYNC[name]))
    assert lifted.keys() == own.keys()
    for called, method in lifted.items():
        kind = "isasyncgenfunction" if hasattr(own[called], "pages") else "iscoroutinefunction"
        assert getattr(inspect, kind)(method), called
        assert method.__wrapped__ is own[called], called


@pytest.mark.parametrize("name", NAMES)
def test_a_lifted_method_has_the_same_signature_and_the_same_words(name):
    own = methods(type(SYNC[name]))
    for called, method in methods(type(ASYNC[name])).items():
        lifted, sync = inspect.signature(method), inspect.signature(own[called])
        if hasattr(own[called], "pages"):
            assert typing.get_origin(lifted.return_annotation) is AsyncGenerator, called
            assert typing.get_origin(sync.return_annotation) is Generator, called
            lifted = lifted.replace(return_annotation=sync.return_annotation)
        assert lifted == sync, called
        assert method.__doc__ is own[called].__doc__, called
        assert method.__name__ == called


GATHERED = {"save", "save_many", "save_chat", "log", "record"}


def test_the_signature_of_a_method_in_halves_or_of_several_units_says_what_its_caller_gets():
    def returned(method: object) -> object:
        return typing.get_type_hints(method)["return"]

    assert returned(SYNC["messages"].save) is MessageRecord
    assert returned(ASYNC["messages"].save_many) == list[MessageRecord]
    assert returned(SYNC["messages"].search) == Page[SearchHit]
    assert returned(ASYNC["users"].delete) is DeletionReceipt


WITHOUT_AN_END = {"messages.follow"}
"""Methods whose pages have no last one."""


def test_whatever_gives_a_page_has_a_generator_over_all_pages():
    for name in NAMES:
        own = methods(type(SYNC[name]))
        for called, method in own.items():
            returned = typing.get_type_hints(method)["return"]
            if typing.get_origin(returned) is not Page or f"{name}.{called}" in WITHOUT_AN_END:
                continue
            over = own["iter" if called in ("list", "page") else f"iter_{called}"]
            assert over.pages.method == called
            (item,) = typing.get_args(returned)
            assert typing.get_type_hints(over)["return"] == Generator[item, None, None], called


def what_is_shown(method: Callable[..., object]) -> tuple[str, str, object]:
    """Give what an editor, or ``help()``, finds on a bound method."""
    hints = typing.get_type_hints(method)
    return str(inspect.signature(method)), inspect.getdoc(method) or "", hints["return"]


def shown_by(repositories: object) -> dict[str, tuple[str, str, object]]:
    """Give what is shown of all methods but those whose results differ, being asynchronous."""
    return {
        f"{name}.{called}": what_is_shown(getattr(repository, called))
        for name, repository in ((name, getattr(repositories, name)) for name in NAMES)
        for called, method in methods(type(repository)).items()
        if not hasattr(inspect.unwrap(method, stop=lambda f: hasattr(f, "pages")), "pages")
    }


def test_every_object_with_repositories_shows_the_signatures_and_words_of_their_methods():
    own = shown_by(Repositories(NoRunner()))
    assert len(own) > 100
    for called, (signature, words, returned) in own.items():
        assert words, called
        assert "self" not in signature, called
        assert typing.get_origin(returned) is not Generator, called
    with Store("sqlite://", slow_after=60) as watched:
        assert shown_by(watched) == own
    with Store("sqlite://") as opened, opened.transaction() as tx:
        assert shown_by(opened) == shown_by(tx) == own
    with Store("sqlite://") as opened:
        user = opened.users.create("Ada")
        scoped = opened.scoped(user.id)
        with scoped.transaction() as tx:
            assert shown_by(scoped) == shown_by(tx) == own

    async def look() -> None:
        async with AsyncStore("sqlite://", slow_after=60) as watched:
            assert shown_by(watched) == own
        async with AsyncStore("sqlite://") as opened:
            async with opened.transaction() as tx:
                assert shown_by(opened) == shown_by(tx) == own
            user = await opened.users.create("Ada")
            scoped = opened.scoped(user.id)
            async with scoped.transaction() as tx:
                assert shown_by(scoped) == shown_by(tx) == own

    asyncio.run(look())


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_a_lifted_method_as_it_is_called(name):
    for called in methods(type(ASYNC[name])):
        page = pydoc.plain(pydoc.render_doc(getattr(ASYNC[name], called)))
        _, words, _ = what_is_shown(getattr(SYNC[name], called))
        assert f"async {called}(" in page, called
        assert words.splitlines()[0] in page


@pytest.mark.parametrize("name", NAMES)
def test_a_repository_for_a_scope_is_documented_as_the_one_it_guards(name):
    assert scoped(type(SYNC[name])).__doc__ == type(SYNC[name]).__doc__
    assert aio._scoped(type(ASYNC[name])).__doc__ == type(ASYNC[name]).__doc__


@pytest.mark.parametrize("name", NAMES)
def test_every_method_says_what_it_needs_of_a_transaction(name):
    for called, method in methods(type(SYNC[name])).items():
        if hasattr(method, "several_units") or hasattr(method, "pages"):
            assert not hasattr(method, "operation"), called  # each unit says so itself
            continue
        described = getattr(method, "operation", None)
        assert isinstance(described, Operation), called
        assert isinstance(described.mode, Mode), called
        assert inspect.isgeneratorfunction(described.body) is (called in GATHERED), called


def offered_by_store(kind: type) -> dict[str, inspect.Signature]:
    found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: inspect.signature(value) for name, value in found.items() if callable(value)}


def test_both_stores_offer_the_same_and_the_asynchronous_one_opens_later():
    own, other = offered_by_store(Store), offered_by_store(AsyncStore)
    assert other.keys() - own.keys() == {"open"}
    assert own.keys() <= other.keys()
    for name, signature in own.items():
        assert [*signature.parameters] == [*other[name].parameters], name


def test_both_stores_are_made_from_the_same_arguments():
    own, other = inspect.signature(Store), inspect.signature(AsyncStore)
    assert [*own.parameters] == [*other.parameters]
    assert own.parameters["options"] == other.parameters["options"]


def test_a_transaction_has_the_repositories_of_its_store():
    with Store("sqlite://") as opened, opened.transaction() as tx:
        for name, repository in repositories_of(tx).items():
            assert type(repository) is type(SYNC[name])
            assert repository is getattr(tx, name)

    async def look():
        async with AsyncStore("sqlite://") as opened, opened.transaction() as tx:
            for name, repository in repositories_of(tx, AsyncRepositories).items():
                assert type(repository) is type(ASYNC[name])
                assert repository is getattr(tx, name)

    asyncio.run(look())


def test_each_repository_of_a_store_is_said_in_a_line_to_hold_something_of_its_own():
    said = [vars(Repositories)[name].__doc__ for name in NAMES]
    assert all(said)
    assert len({*said}) == len(NAMES)


def test_the_stub_of_the_asynchronous_repositories_is_what_make_docs_writes():
    assert async_stub.Stub().text() == async_stub.STUB.read_text(encoding="utf-8"), "run make docs"


@pytest.mark.parametrize("name", NAMES)
def test_the_stub_has_every_method_of_an_asynchronous_repository(name):
    (stub,) = (
        node
        for node in ast.parse(async_stub.STUB.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == type(ASYNC[name]).__name__
    )
    nodes = [node for node in stub.body if not isinstance(node, ast.Assign | ast.Expr)]
    written = {node.name: node for node in reversed(nodes)}  # of overloads the first
    offered = methods(type(ASYNC[name]))
    assert {called for called in written if not called.startswith("_")} == offered.keys()
    for called, method in offered.items():
        awaited = isinstance(written[called], ast.AsyncFunctionDef)
        assert awaited is inspect.iscoroutinefunction(method), called
        assert ast.get_docstring(written[called]) == inspect.getdoc(method), called


@pytest.mark.parametrize("name", NAMES)
def test_an_asynchronous_repository_is_pickled_by_its_name(name):
    kind = type(ASYNC[name])
    assert pickle.loads(pickle.dumps(kind)) is kind  # noqa: S301
    assert (kind.__module__, kind.__qualname__) == ("agentstore.aio", kind.__name__)


def test_a_method_that_is_written_in_a_repository_is_there_for_coroutines():
    class Names(Users):
        """Names of users."""

        __slots__ = ()

        @reads
        def first(self) -> str | None:
            """Give the first."""
            return None

        def help(self) -> None:
            """Do something that is no operation."""

    kind = aio.lifted(Names)
    assert kind.__name__ == "AsyncNames"
    assert kind.first.__doc__ == "Give the first."
    assert inspect.iscoroutinefunction(kind.first)
    assert not hasattr(kind, "help")
