"""The models in an ORM session of an application's own: what leads where, and by which index."""

import asyncio
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import (
    bindparam,
    create_engine,
    event,
    func,
    inspect,
    literal,
    literal_column,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import InvalidRequestError, StatementError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import (
    Session,
    aliased,
    joinedload,
    lazyload,
    selectinload,
    subqueryload,
)

from agentstore import Store, models
from agentstore.errors import InvalidInput
from agentstore.models import Models
from agentstore.schema import PLAIN
from tests.migrations.support import names_on
from tests.programs.copies import ENGINES, NAMED, filled
from tests.programs.probes import MODEL

SAME = {
    "user": (("user_id", "id"),),
    "session": (("session_id", "id"),),
    "message": (("message_id", "id"),),
    "thread": (("thread_id", "id"),),
    "blob": (("digest", "digest"),),
    "checkpoint": (("checkpoint_pk", "pk"),),
    "memory": (("memory_pk", "pk"),),
    "in_branch": (("session_id", "session_id"), ("branch", "number")),
    "parent": (("thread_id", "thread_id"), ("namespace", "namespace"), ("parent_id", "id")),
}
"""What a model and the one that it leads to have in common, as the public attributes say it."""

KEYED_BY_SESSION = {"Branch", "Summary"}


def driver_url(url: str, *, asynchronous: bool = False) -> Any:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    return parsed.set(drivername="sqlite+aiosqlite") if asynchronous else parsed


def with_all_kinds_of_rows(new, engine, names=PLAIN):
    url = filled(new, engine, names)
    own = names_on(url, names)
    with Store(url, schema=own.schema, table_prefix=own.prefix, embeddings=MODEL) as store:
        for session in store.sessions.list():
            store.messages.save(session.id, "user", "And tomorrow?")
        user = store.users.list(limit=1).items[0]
        first = store.checkpoints.put("of a user", {"step": 1}, user_id=user.id)
        store.checkpoints.put("of a user", {"step": 2}, parent_id=first.id)
        store.memories.embed_pending()  # of messages, too
    return url


@pytest.fixture(params=ENGINES)
def url(request, new):
    return with_all_kinds_of_rows(new, request.param)


@pytest.fixture
def orm(url):
    engine = create_engine(driver_url(url))
    with Session(engine) as session:
        yield session
    engine.dispose()


def relationships(of=models):
    for mapper in sorted(of.Base.registry.mappers, key=str):
        for each in mapper.relationships:
            yield mapper.class_, each


def pairs(orm, model, way, how):
    """Give the keys of what is led from where to where."""
    orm.expunge_all()
    found = set()
    for one in orm.scalars(select(model).options(how(getattr(model, way.key)))).unique():
        there = getattr(one, way.key)
        others = there if way.uselist else [] if there is None else [there]
        found |= {(inspect(one).identity, inspect(other).identity) for other in others}
    return found


def rows_of_all_models(orm):
    return {m.class_: orm.scalars(select(m.class_)).all() for m in models.Base.registry.mappers}


def expected(rows, model, way):
    """Join in Python, by the ids that the models show."""
    if way.direction.name == "MANYTOONE":
        same = SAME[way.key] if hasattr(model, SAME[way.key][0][0]) else (("message_pk", "pk"),)
    else:
        (back,) = [
            each
            for each in way.mapper.relationships
            if each.mapper.class_ is model and each.direction.name == "MANYTOONE"
        ]
        there = SAME[back.key]
        if not hasattr(back.parent.class_, there[0][0]):
            there = (("message_pk", "pk"),)
        same = tuple((own, other) for other, own in there)
    return {
        (inspect(one).identity, inspect(other).identity)
        for one in rows[model]
        for other in rows[way.mapper.class_]
        if all(getattr(one, a) == getattr(other, b) for a, b in same)
    }


@pytest.mark.long(but=["sqlite"])
def test_each_relationship_leads_to_the_same_rows_by_whatever_way_it_is_loaded(orm):
    rows = rows_of_all_models(orm)
    for model, way in relationships():
        wanted = expected(rows, model, way)
        assert wanted, f"no row for {way}"
        keyed = model.__name__ in KEYED_BY_SESSION
        for how in (joinedload, lazyload, subqueryload if keyed else selectinload):
            assert pairs(orm, model, way, how) == wanted, (str(way), how)
        if keyed:
            with pytest.raises(StatementError) as refused:
                pairs(orm, model, way, selectinload)
            assert isinstance(refused.value.orig, InvalidInput)
            assert "joinedload" in str(refused.value.orig)


def test_what_was_not_asked_for_raises_instead_of_being_loaded(orm):
    for model, way in relationships():
        one = orm.scalars(select(model)).first()
        with pytest.raises(InvalidRequestError, match="lazy='raise'"):
            getattr(one, way.key)


def test_a_relationship_is_joined_by_an_index_and_reads_no_table_whole(orm):
    sqlite = orm.get_bind().dialect.name == "sqlite"
    explain = "EXPLAIN QUERY PLAN" if sqlite else "EXPLAIN"
    sent = []
    event.listen(orm.get_bind(), "before_cursor_execute", lambda *given: sent.append(given[2:4]))
    if not sqlite:
        orm.execute(text("SET LOCAL enable_seqscan = off"))
    for model, way in relationships():
        one, mapper = orm.scalars(select(model)).first(), inspect(model)
        keys = [mapper.get_property_by_column(column).key for column in mapper.primary_key]
        query = (
            select(literal_column("1"))
            .select_from(model)
            .join(getattr(model, way.key).of_type(aliased(way.mapper.class_)))
            .where(*(getattr(model, key) == getattr(one, key) for key in keys))
        )
        orm.execute(query)
        sql, parameters = sent[-1]
        plan = [row[-1] for row in orm.connection().exec_driver_sql(f"{explain} {sql}", parameters)]
        whole = [line for line in plan if "Seq Scan" in line or line.startswith("SCAN ")]
        assert whole == [], (str(way), plan)


def test_a_session_id_is_compared_with_ids_wherever_they_come_from(orm):
    given, other = orm.scalars(select(models.Session.id).order_by(models.Session.pk)).all()
    message, session, usage = models.Message, models.Session, models.TurnUsage
    by = {given: [], other: []}
    for pk, owner in orm.execute(select(message.pk, message.session_id).order_by(message.pk)):
        by[owner].append(pk)
    assert len(by[given]) > len(by[other]) > 0

    def found(condition, *joined):
        query = select(message.pk).where(condition).order_by(message.pk)
        for entity, on in joined:
            query = query.join(entity, on)
        return list(orm.scalars(query))

    its = message.session_id
    ids = select(session.id).where(session.id == given)
    assert found(its == given) == found(its.in_([given, "nobody's"])) == by[given]
    assert found(its != given) == found(its.not_in([given, "nobody's"])) == by[other]
    assert found(its.in_([])) == []
    assert found(its == ids.scalar_subquery()) == found(its.in_(ids)) == by[given]
    assert found(its.in_(select(session.pk).where(session.id == given))) == by[given]
    assert found(its.in_(select(usage.session_id))) == by[given]
    later = select(message.pk).where(its.in_(bindparam("ids", expanding=True)))
    assert sorted(orm.scalars(later, {"ids": [given]})) == by[given]
    for on in (its == session.id, session.id == its, its == session.pk, session.pk == its):
        assert found(session.id == given, (session, on)) == by[given]
    without = select(message.session_id).where(message.role == "tool")
    assert list(orm.scalars(select(session.id).where(session.id.in_(without)))) == [given]
    assert list(orm.scalars(select(session.id).where(session.id.not_in(without)))) == [other]
    counted = orm.execute(select(its, func.count()).group_by(its))
    assert dict(counted.all()) == {owner: len(theirs) for owner, theirs in by.items()}
    for compare in (lambda: its < given, lambda: its.like("a%"), lambda: its.between("a", "b")):
        with pytest.raises(InvalidInput, match="== and != and in_"):
            compare()


def test_an_object_of_the_orm_stands_for_its_row(orm):
    one = orm.scalars(select(models.Message)).first()
    session = orm.scalars(select(models.Session).where(models.Session.id == one.session_id)).one()
    theirs = orm.scalars(select(models.Message).where(models.Message.session == session)).all()
    assert one in theirs
    assert {message.session_id for message in theirs} == {session.id}
    containing = select(models.Session).where(models.Session.messages.contains(one))
    assert orm.scalars(containing).all() == [session]
    branch = orm.get(models.Branch, (session.id, one.branch))
    assert branch.session_id == session.id


def test_the_models_lead_on_in_an_asynchronous_session(url):
    async def load():
        engine = create_async_engine(driver_url(url, asynchronous=True))
        async with AsyncSession(engine) as orm:
            session = models.Session
            query = (
                select(models.User)
                .where(models.User.sessions.any(session.messages.any()))
                .order_by(models.User.pk)
                .options(
                    selectinload(models.User.sessions).options(
                        selectinload(session.messages).joinedload(models.Message.in_branch),
                        selectinload(session.usage),
                        selectinload(session.tasks),
                        joinedload(session.data),
                    )
                )
            )
            found = (await orm.scalars(query)).first()
        await engine.dispose()
        return found

    user = asyncio.run(load())
    (session,) = [each for each in user.sessions if each.messages]
    assert [message.seq for message in session.messages] == sorted(m.seq for m in session.messages)
    assert {message.in_branch.name for message in session.messages} >= {"main"}
    assert {each.session_id for each in (*session.usage, *session.tasks)} == {session.id}
    assert session.data.metadata_ == {"deep": [[[[{"\x00": "\udfff"}]]]]}


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_of_other_names_have_models_of_their_own(new, engine):
    url = with_all_kinds_of_rows(new, engine, NAMED)
    names = names_on(url, NAMED)
    own = models.named(schema=names.schema, table_prefix=names.prefix)
    assert own is models.named(schema=names.schema, table_prefix=names.prefix)
    connected = create_engine(driver_url(url))
    with Session(connected) as orm:
        for (model, way), (plain, same) in zip(relationships(own), relationships(), strict=True):
            assert (model.__name__, way.key, way.uselist) == (
                plain.__name__,
                same.key,
                same.uselist,
            )
            assert model is getattr(own, model.__name__)
            assert model is not plain
            if plain in (models.Message, models.Session, models.Branch, models.Checkpoint):
                assert pairs(orm, model, way, joinedload), way
    connected.dispose()


def test_every_model_is_an_attribute_that_type_checkers_know():
    known = set(Models.__annotations__) - {"_of", "Base"}
    assert known == {mapper.class_.__name__ for mapper in models.Base.registry.mappers}


def test_without_names_the_models_are_the_plain_ones():
    assert models.named().User is models.User
    assert models.named().Base is models.Base
    own = models.named(table_prefix="own_")
    others = [models.named(table_prefix=f"other{n}_") for n in range(70)]
    assert models.named(table_prefix="own_") is own
    assert len({id(each.User) for each in others}) == len(others)
    with pytest.raises(InvalidInput, match="table_prefix"):
        models.named(table_prefix="No Prefix")


def test_days_weeks_and_months_of_instants_are_grouped_and_compared_alike(place):
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    instants = [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime(2026, 2, 28, 23, 59, 59, 999_999, UTC),
        datetime(2026, 3, 1, tzinfo=UTC),
        datetime(2026, 3, 2, 12, tzinfo=UTC),
        datetime(2026, 3, 2, 13, tzinfo=UTC),
    ]
    with place.open(clock=lambda: now[0]) as store:
        session = store.sessions.create().id
        for now[0] in instants[1:]:
            store.usage.record(session, input_tokens=1)
    engine = create_engine(driver_url(place.url))
    try:
        with Session(engine) as orm:
            used = models.TurnUsage
            for of, first in (
                (models.day, lambda each: each),
                (models.week, lambda each: each - timedelta(days=each.weekday())),
                (models.month, lambda each: each.replace(day=1)),
            ):
                query = select(of(used.created_at), func.count()).group_by(of(used.created_at))
                found = {each: count for each, count in orm.execute(query)}  # noqa: C416 - rows are no pairs to dict()
                assert found == Counter(first(each.date()) for each in instants[1:])
                assert orm.scalars(
                    select(of(literal(instants[0], used.created_at.type)))
                ).one() == (date(1, 1, 1))
                march = select(func.count()).where(of(used.created_at) > date(2026, 3, 1))
                assert orm.scalars(march).one() == sum(
                    first(each.date()) > date(2026, 3, 1) for each in instants[1:]
                )
    finally:
        engine.dispose()
