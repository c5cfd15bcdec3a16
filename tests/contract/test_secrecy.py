"""What PostgreSQL quotes of a row in its errors is in none of ours, nor in their tracebacks."""

import traceback

import pytest
from sqlalchemy import text

from agentstore import migrations
from agentstore.errors import ConstraintViolation, DatabaseError
from agentstore.moving.copy_ends import End
from agentstore.schema import Names
from tests.conftest import DRIVERS, VERSIONS, Place
from tests.programs.probes import connect

SECRET = "my diagnosis is 42"  # noqa: S105 - nobody's


@pytest.fixture(params=[pytest.param(d, id=d.name) for d in DRIVERS if d.engine == "postgresql"])
def place(request, servers):
    return Place(request.param, servers.new_database(VERSIONS[0]))


def shown(error: BaseException) -> str:
    """Give all that a log would have of an error."""
    return "".join([*traceback.format_exception(error), repr(error), repr(vars(error))])


def test_a_row_that_a_constraint_of_the_application_refuses_is_not_quoted(place):
    with place.open() as store:
        session = store.sessions.create()
        with connect(place.url) as admin:
            admin.execute(
                f"ALTER TABLE messages ADD CONSTRAINT no_42 CHECK (content <> '{SECRET}')"
            )
        for key in (None, "a-key"):
            with pytest.raises(ConstraintViolation, match="no_42") as caught:
                store.messages.save(session.id, "user", SECRET, idempotency_key=key)
            assert SECRET not in shown(caught.value)
        with pytest.raises(ConstraintViolation, match="no_42") as caught:
            store.messages.save_many(session.id, [{"role": "user", "content": SECRET}] * 3)
        assert SECRET not in shown(caught.value)
        with pytest.raises(ConstraintViolation, match="no_42") as caught, store.transaction() as tx:
            tx.messages.save(session.id, "user", SECRET)
        assert SECRET not in shown(caught.value)
        assert store.messages.history(session.id) == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT cast(cast(:it AS text) AS integer)", "invalid input syntax for type integer"),
        ("SELECT cast(cast(:it AS text) AS jsonb)", "invalid input syntax for type json"),
        ("SELECT cast(cast(:it AS text) AS timestamptz)", "invalid input syntax"),
    ],
)
def test_a_value_that_the_server_cannot_read_is_not_quoted(place, statement, said):
    end = End(place.url, Names(), read_only=False)
    with pytest.raises(DatabaseError, match=said) as caught, end.working() as connection:
        connection.execute(text(statement), {"it": SECRET})
    assert SECRET not in shown(caught.value)


def test_a_line_that_cannot_be_loaded_is_not_quoted(place):
    end = End(place.url, Names(), read_only=False)
    with (
        pytest.raises(DatabaseError, match="bigint") as caught,
        end.working() as connection,
    ):
        cursor = connection.connection.cursor()
        with cursor.copy("COPY users (id, name, quota_used) FROM STDIN") as copy:
            copy.write_row(("u", "Alice", SECRET))
    assert SECRET not in shown(caught.value)


def test_rows_in_the_way_of_a_migration_are_not_quoted(place):
    migrations.downgrade(url=place.url, revision="base")
    with connect(place.url) as admin:
        admin.execute("CREATE TABLE unique_words (word text)")
        for _ in range(2):
            admin.execute("INSERT INTO unique_words VALUES (%s)", (SECRET,))
        admin.execute(
            "CREATE FUNCTION spoil() RETURNS event_trigger LANGUAGE plpgsql AS "
            "$$ BEGIN ALTER TABLE public.unique_words ADD UNIQUE (word); END $$"
        )
        admin.execute("CREATE EVENT TRIGGER spoiler ON ddl_command_end EXECUTE FUNCTION spoil()")
    with pytest.raises(DatabaseError) as caught:
        migrations.upgrade(url=place.url)
    assert SECRET not in shown(caught.value)
