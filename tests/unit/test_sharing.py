"""Agentstore's tables in an application's metadata, and its types in their revisions."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate.api import AutogenContext
from alembic.migration import MigrationContext
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from agentstore import InvalidInput, Store, migrations, models
from agentstore.schema import Names, attach, tables
from agentstore.schema.base import METADATA
from agentstore.values.types import OwnId, SafeText


@pytest.mark.parametrize(
    ("schema", "prefix", "place"),
    [(None, "", ""), (None, "agents_", "agents_"), ("store", "agents_", "store.agents_")],
)
def test_a_foreign_key_finds_the_table_and_has_the_type_of_its_column(schema, prefix, place):
    metadata = sa.MetaData()
    attached = attach(metadata, schema=schema, table_prefix=prefix)
    assert attached is tables(Names(schema, prefix))
    own = sa.Table(
        "own",
        metadata,
        sa.Column("user_id", sa.ForeignKey(f"{place}users.id")),
        sa.Column("message_id", sa.ForeignKey(f"{place}messages.id")),
        sa.Column("session_id", sa.ForeignKey(attached.sessions.c.id)),
    )
    assert own.c.user_id.references(attached.users.c.id)
    kinds = [type(column.type) for column in own.columns]
    assert kinds == [SafeText, OwnId, SafeText]
    assert f"REFERENCES {place}users (id)" in str(sa.schema.CreateTable(own))
    assert attach(metadata, schema=schema, table_prefix=prefix) is attached


def test_a_metadata_that_has_a_table_of_the_same_name_gets_none():
    metadata = sa.MetaData()
    sa.Table("users", metadata, sa.Column("id", sa.Integer, primary_key=True))
    with pytest.raises(InvalidInput, match=r"by the names users.*table_prefix"):
        attach(metadata)
    assert [*metadata.tables] == ["users"]
    attach(metadata, table_prefix="agents_")


def test_only_revisions_make_and_drop_what_is_attached(tmp_path):
    class Base(DeclarativeBase):
        pass

    agents = attach(Base.metadata)

    class Profile(Base):
        __tablename__ = "profiles"
        user_id: Mapped[str] = mapped_column(sa.ForeignKey("users.id"), primary_key=True)
        user: Mapped[models.User] = relationship(models.User)

    engine = sa.create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    with pytest.raises(InvalidInput, match="Before create_all"):
        Base.metadata.create_all(engine)
    assert sa.inspect(engine).get_table_names() == []
    with Store(engine=engine) as store:
        Base.metadata.create_all(engine)
        user = store.users.create("Ada")
        with Session(engine) as db:
            db.add(Profile(user_id=user.id))
            db.commit()
            assert db.scalars(sa.select(Profile)).one().user.name == "Ada"
            joined = sa.select(agents.users.c.name).join(Profile)
            assert db.scalars(joined).all() == ["Ada"]
        with pytest.raises(InvalidInput, match=r"drop_all\(\) pass"):
            Base.metadata.drop_all(engine)
        Base.metadata.drop_all(engine, tables=[Profile.__table__])
        assert store.users.get(user.id).name == "Ada"
    engine.dispose()


COLUMNS = [column for table in METADATA.tables.values() for column in table.columns]


@pytest.mark.parametrize(
    "dialect", [sqlite.dialect(), postgresql.dialect()], ids=lambda dialect: dialect.name
)
def test_every_type_is_written_as_one_of_sqlalchemy_s_that_is_the_same(dialect):
    opts = {"sqlalchemy_module_prefix": "sa.", "render_item": migrations.render_item}
    context = AutogenContext(MigrationContext.configure(dialect=dialect), opts=opts)
    seen = set()
    for column in COLUMNS:
        written = migrations.render_item("type", column.type, context)
        if written is False:  # SQLAlchemy's own
            assert type(column.type).__module__.startswith("sqlalchemy")
            continue
        seen.add(written)
        plain = eval(written, {"sa": sa})  # noqa: S307 - Alembic's reader does so too
        assert plain.compile(dialect) == column.type.compile(dialect), column
    assert len(seen) > 5
    assert migrations.render_item("table", METADATA.tables["users"], context) is False
