"""A database that version 0.1.0 wrote is upgraded to today's schema, and answers as it did then."""

import gzip
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from agentstore import Store, doctor, migrations
from agentstore.errors import SchemaOutdated
from agentstore.records.upkeep import exit_code
from tests.conftest import Servers
from tests.drivers import VERSIONS
from tests.migrations.frozen import answers
from tests.migrations.support import rows_of

FROZEN = Path(answers.__file__).parent


def unpacked(name: str) -> bytes:
    return gzip.decompress((FROZEN / name).read_bytes())


THEN: dict[str, Any] = json.loads(unpacked("answers.json.gz"))


def differences(url: str) -> list[str]:
    """Ask at the moment that it was then, as some statuses follow from a time."""
    at = datetime.fromisoformat(THEN["at"])
    with Store(url, clock=lambda: at) as store:
        now = {"at": THEN["at"], **answers.ask(store)}
    now = json.loads(json.dumps(now))
    return answers.differences(THEN, now)


@pytest.fixture(params=["sqlite", *VERSIONS])
def frozen(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[str]:
    """The URL of the database as it was then."""
    if request.param == "sqlite":
        path = tmp_path / "frozen.db"
        path.write_bytes(unpacked("sqlite.db.gz"))
        yield f"sqlite:///{path}"
        return
    url = servers.new_database(request.param, empty=True)
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(unpacked("postgresql.sql.gz"))
    yield url
    servers.drop(request.param, url)


def test_a_frozen_database_answers_after_an_upgrade_as_it_did_then(frozen: str) -> None:
    migrations.upgrade(frozen)
    assert differences(frozen) == []


def test_a_frozen_database_is_sound_after_an_upgrade_and_goes_on(frozen: str) -> None:
    migrations.upgrade(frozen)
    found = doctor.examine(frozen, deep=True)
    of_the_server = {"engine", "settings"}
    bad = [each for each in found if each.check not in of_the_server and exit_code([each])]
    assert bad == []
    with Store(frozen) as store:
        for session, then in THEN["of a session"].items():
            counted, *_ = then["counters"][answers.RECORD]["counted"]
            store.messages.save(session, "user", "on it goes")
            counters = store.sessions.verify(session)
            assert counters.agree
            assert counters.counted[0] == counted + 1


def test_a_frozen_database_is_refused_before_its_upgrade_with_what_to_run(frozen: str) -> None:
    with pytest.raises(SchemaOutdated, match="agentstore upgrade") as caught:
        Store(frozen)
    assert (caught.value.current, caught.value.head) == ("0100", migrations.HEAD)
    assert migrations.revision_of(frozen) == "0100"


def test_a_frozen_database_goes_back_and_up_again(frozen: str) -> None:
    migrations.upgrade(frozen)
    assert migrations.downgrade(frozen, revision="0100") == "0100"
    assert migrations.upgrade(frozen) == migrations.HEAD
    assert differences(frozen) == []


def test_every_table_has_rows_in_the_frozen_database(frozen: str) -> None:
    assert [name for name, rows in rows_of(frozen).items() if not rows] == []


def test_the_questions_notice_a_row_that_is_lost(frozen: str) -> None:
    migrations.upgrade(frozen)
    with Store(frozen) as store:
        session = store.sessions.walk().items[0].id
        store.messages.pop(session)
    assert differences(frozen)
