"""``stats`` and ``doctor``: what they print, and what they exit with."""

import json

import pytest
from sqlalchemy import create_engine, text

from agentstore import Store
from agentstore.alerts import parse_bytes
from agentstore.cli import operations
from agentstore.records.upkeep import Finding, Severity


def fill(url):
    with Store(url, create=False) as store:
        user = store.users.create("[bold]Alice", id="[bold]alice")
        session = store.sessions.create(user.id)
        store.messages.save(session.id, "user", "hi", token_count=5, cost="0.25")
        store.tool_logs.log(session.id, "search", elapsed_ms=12)
        store.usage.record(session.id, input_tokens=5, model="m1", cost="0.25")


def test_stats_are_whole_as_json_and_fit_into_80_columns(run, engine_url):
    fill(engine_url)
    found = json.loads(run("stats", "--json", "--days", "3", "--url", engine_url).stdout)
    assert found["rows"]["messages"] == 1
    assert (found["tokens"], found["cost"]) == (5, "0.250000000")
    assert found["sessions_by_status"] == {"active": 1}
    assert len(found["growth"]) == 3
    assert found["growth"][-1]["messages"] == 1
    assert found["users"][0]["user_id"] == "[bold]alice"
    assert found["models"][0]["key"] == "m1"
    assert found["alerts"] == []
    shown = run("stats", "--url", engine_url).stdout
    lines = shown.splitlines()
    assert all(len(line) <= 80 for line in lines[1:]), shown  # the first is the URL
    for word in ("[bold]Alice", "search", "m1", "top users", "█"):
        assert word in shown


def test_stats_and_usage_write_one_cost_alike(told, url):
    with Store(url) as store:
        for model, cost in (("m1", "0.0000423"), ("m2", "0.123456"), ("m3", "1000")):
            store.usage.record(store.sessions.create().id, model=model, cost=cost)
    for cost in ("<$0.0001", "$0.1235", "$1,000.0000"):
        assert cost in told("stats").split()
        assert cost in told("usage", "--by", "model").split()


EVIL = "eve\nalice   1,000,000   9,999   0.00\x1b[2J\u202e"


def test_what_is_called_like_a_row_makes_none(told, url):
    with Store(url) as store:
        user = store.users.create(EVIL, id=EVIL)
        session = store.sessions.create(user.id, id="[red]x\n0 errors, 0 warnings.")
        store.messages.save(session.id, "user", "hi", cost="1")
        store.tool_logs.log(session.id, EVIL)
        store.usage.record(session.id, input_tokens=5, model=EVIL, cost="1")
    printed = told("stats")
    assert not [line for line in printed.splitlines() if line.startswith("alice")]
    assert printed.count("eve alice 1,000,000") == 3
    assert "\x1b" not in printed
    assert "\u202e" not in printed


def test_a_finding_is_one_line_whatever_it_is_about(capsys):
    told = f"{EVIL}\n0 errors, 0 warnings."
    operations.print_finding(Finding(Severity.ERROR, "rows", told, "s" * 99, f"DROP {EVIL}  x"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: rows: eve alice 1,000,000")
    assert lines[0].endswith("0 errors, 0 warnings. [" + "s" * 99 + "]")
    assert lines[1] == r"    DROP eve\nalice   1,000,000   9,999   0.00\x1b[2J\u202e  x"


@pytest.mark.parametrize("size", ["9" * 400, "9" * 5_000, "1" + "0" * 29 + "TB", "8388608TiB"])
def test_a_size_that_no_database_can_have_is_refused(told, tmp_path, size):
    for option in ("--warn-bytes", "--fail-bytes"):
        assert "size" in told("stats", option, size, code=2)
    (tmp_path / "agentstore.toml").write_text(f'[alerts]\nwarn_bytes = "{size}"\n')
    assert "size" in told("stats", code=2)


@pytest.mark.parametrize("limit", ["9" * 400, "9" * 5_000, "0x" + "f" * 5_000])
def test_a_limit_of_any_number_of_digits_is_refused_in_a_line(told, tmp_path, limit):
    for name in ("warn_bytes", "warn_rows"):
        (tmp_path / "agentstore.toml").write_text(f"[alerts]\n{name} = {limit}\n")
        assert told("stats", code=2).count("\n") == 1


def test_the_largest_size_is_read_to_the_byte():
    assert parse_bytes(str(2**63 - 1)) == 2**63 - 1
    assert parse_bytes("8388607TiB") == 8388607 * 2**40


@pytest.mark.long(but=["options0-*", "options1-*"])
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 0),
        (("--warn-bytes", "1KB"), 3),
        (("--fail-bytes", "1KB"), 4),
        (("--warn-rows", "1"), 3),
        (("--fail-rows", "1"), 4),
        (("--warn-bytes", "1TB", "--fail-rows", "1000"), 0),
    ],
)
def test_stats_exit_by_the_worst_alert(run, tmp_path, options, code):
    Store(f"sqlite:///{tmp_path / 'agentstore.db'}").close()
    fill(f"sqlite:///{tmp_path / 'agentstore.db'}")
    done = run("stats", *options, code=code)
    assert ("the limit is" in done.stdout) == bool(code)
    as_json = json.loads(run("stats", "--json", *options, code=code).stdout)
    assert len(as_json["alerts"]) == bool(code)


def test_limits_in_the_file_count_and_an_option_comes_before_them(run, tmp_path):
    Store(f"sqlite:///{tmp_path / 'agentstore.db'}").close()
    (tmp_path / "agentstore.toml").write_text('[alerts]\nwarn_bytes = "1KB"\n')
    run("stats", code=3)
    run("stats", "--warn-bytes", "1TB")
    (tmp_path / "other.toml").write_text('[alerts]\nfail_bytes = "1KB"\n')
    run("stats", "--config", "other.toml", code=4)
    (tmp_path / "agentstore.toml").write_text("[alerts]\nwarn = 1\n")
    assert "warn_bytes" in run("stats", code=2).stderr
    assert "5GB" in run("stats", "--warn-bytes", "much", "--config", "other.toml", code=2).stderr


def test_the_doctor_reports_repairs_and_exits_by_the_worst_finding(run, engine_url):
    fill(engine_url)
    of_the_machine = ("engine", "permissions", "disk", "settings", "connections")
    ignored = [word for check in of_the_machine for word in ("--ignore", check)]
    ask = ("doctor", "--url", engine_url, *ignored)
    run(*ask)
    engine = create_engine(engine_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX ix_tasks_claim"))
    assert "ix_tasks_claim" in run(*ask, code=3).stdout
    with engine.begin() as connection:
        connection.execute(text("UPDATE sessions SET message_count = 7"))
    engine.dispose()
    found = json.loads(run(*ask, "--json", code=4).stdout)
    assert found["exit_code"] == 4
    assert {finding["check"] for finding in found["findings"]} >= {"counters", "indexes"}
    done = run(*ask, "--fix")
    assert "fixed: made the index ix_tasks_claim" in done.stdout
    assert "fixed: counted 1 session again" in done.stdout
    assert "0 errors, 0 warnings." in run(*ask, "--deep").stdout


def test_the_doctor_says_what_it_cannot_repair(run, tmp_path):
    (tmp_path / "agentstore.db").write_bytes(b"no database at all" * 500)
    done = run("doctor", "--fix", code=4)
    assert "Repair failed" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "no file" in run("doctor", "--url", "sqlite:///none.db", code=1).stderr
