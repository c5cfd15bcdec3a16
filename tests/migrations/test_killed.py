"""A migration that is killed leaves the database as it was, however far it had come."""

import signal
import subprocess
import sys

import pytest

from agentstore import migrations
from tests.migrations.support import as_stored, environment

pytestmark = pytest.mark.crash

KILLED_BEFORE_ITS_COMMIT = """
import os, signal, sys
from agentstore import migrations
from agentstore.engines import dialect_for
from agentstore.database import parse_url

url, schema, prefix = sys.argv[1:]
kind = type(dialect_for(parse_url(url)))
kind.check_after_migration = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
migrations.upgrade(url, names=migrations.Names(schema or None, prefix))
"""


def test_a_migration_that_is_killed_before_its_commit_leaves_nothing(databases):
    url, names = databases.make("killed"), databases.names
    before = as_stored(url)
    command = [sys.executable, "-c", KILLED_BEFORE_ITS_COMMIT]
    killed = subprocess.run(
        [*command, url, names.schema or "", names.prefix], env=environment(), check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert as_stored(url) == before
    assert migrations.upgrade(url, names=names) == migrations.HEAD
    assert as_stored(url) == as_stored(databases.upgraded())
