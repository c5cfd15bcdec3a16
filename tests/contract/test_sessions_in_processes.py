"""The life of a session in several processes: killed, restored, read and cleaned up by others."""

import random
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from agentstore import Store
from tests.drivers import FULL
from tests.programs.workers import Worker, run_together

pytestmark = pytest.mark.crash

KILLS = 6 if FULL else 2
READS = 60 if FULL else 12


@pytest.mark.long(but=["postgresql-*"])
def test_a_session_whose_process_is_killed_goes_on_in_another(engine_url):
    rng = random.Random(0)  # noqa: S311 - the points at which to kill
    with Store(engine_url) as store:
        session_id = store.sessions.create(state={"round": 0}).id
    said: list[tuple[str, object]] = []
    with ExitStack() as stack:
        for worker in [stack.enter_context(Worker()) for _ in range(KILLS)]:
            worker.prepare("converse", url=engine_url, session_id=session_id)
            worker.go()
            for _ in range(rng.randint(1, 40)):
                said.append(tuple(worker.answer()["acknowledged"]))
            said += [tuple(answer["acknowledged"]) for answer in worker.kill_and_read()]
            check(engine_url, session_id, said)


def check(url: str, session_id: str, said: list[tuple[str, object]]) -> None:
    """Look for everything that was acknowledged, and whether the rest of it fits."""
    with Store(url) as store:
        restored = store.sessions.restore(session_id)
        counters = store.sessions.verify(session_id)
    assert counters.agree
    assert counters.stored[0] == len(restored.history)
    assert [m.seq for m in restored.history] == list(range(1, len(restored.history) + 1))
    ids = {message.id for message in restored.history}
    assert {value for what, value in said if what in ("message", "answered")} <= ids
    versions = [value for what, value in said if what == "state"]
    assert restored.session.version >= max([1, *versions])
    # The state is that of the last round whose update was committed, acknowledged or not.
    rounds = [int(str(m.content)) for m in restored.history if m.role == "assistant"]
    last_round = max([0, *rounds])
    assert restored.session.state["round"] in (last_round - 1, last_round)
    # A question is pending if, and only if, the session waits; and the last one said is kept.
    assert (restored.question is None) == (restored.session.status == "active")
    if said[-1][0] == "asked" and restored.question is not None:
        assert restored.question == said[-1][1]
    if restored.session.status == "waiting_user":
        assert restored.question == f"question {restored.session.state['round']}?"


def test_a_question_is_answered_by_the_process_that_comes_after_the_killed_one(engine_url):
    with Store(engine_url) as store:
        session_id = store.sessions.create(state={"round": 0}).id
    with Worker() as worker:
        worker.prepare("converse", url=engine_url, session_id=session_id)
        worker.go()
        while worker.answer()["acknowledged"][0] != "asked":
            pass
        worker.kill()
    with Store(engine_url) as store:
        restored = store.sessions.restore(session_id)
        if restored.question is None:  # it was answered before the signal came
            question = "what now?"
            store.sessions.wait_for_user(session_id, question)
            restored = store.sessions.restore(session_id)
        assert restored.session.status == "waiting_user"
        answer = store.sessions.answer(session_id, "this")
        after = store.sessions.restore(session_id)
        assert (after.question, after.session.status) == (None, "active")
        assert after.history == (*restored.history, answer)
        assert (answer.role, answer.content) == ("user", "this")
        assert store.sessions.verify(session_id).agree


def test_a_reader_sees_what_another_process_was_told_before(engine_url):
    with Store(engine_url) as store, Worker() as reader:
        session_id = store.sessions.create(state={"n": 0}).id
        reader.prepare("read_again", url=engine_url, session_id=session_id, times=READS)
        reader.go()
        for n in range(1, READS + 1):
            match n % 4:
                case 0:
                    store.messages.save(session_id, "user", "hello")
                case 1:
                    with store.transaction() as tx:
                        tx.sessions.update(session_id, state={"n": n})
                case 2:
                    store.sessions.update(session_id, state={"n": n}, metadata={"n": n})
                case _:
                    pass
            now = store.sessions.get(session_id)
            reader.go()
            read = reader.answer()["acknowledged"]
            assert read == [now.version, now.state, now.message_count]


SESSIONS = [f"session {n}" for n in range(20)]


def of_three_processes(work: str, url: str) -> list[Any]:
    """Have three processes do this with the same sessions at once; give what each answers."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker()) for _ in range(3)]
        ask = {"do": work, "url": url, "session_ids": SESSIONS}
        return run_together(workers, [{**ask, "me": f"{n}"} for n in range(3)])


def test_processes_that_ensure_a_session_at_once_all_get_the_one_that_was_made(engine_url):
    got = of_three_processes("ensure", engine_url)
    with Store(engine_url) as store:
        assert got == [[store.sessions.get(id).title for id in SESSIONS]] * 3
        assert store.sessions.count() == 20


def test_processes_that_save_into_a_new_session_at_once_make_it_once_and_lose_nothing(engine_url):
    saved = of_three_processes("save_new", engine_url)
    with Store(engine_url) as store:
        assert store.sessions.count() == 20
        for n, id in enumerate(SESSIONS):
            history = store.messages.history(id)
            assert {m.id for m in history} == {each[n] for each in saved}
            assert store.sessions.get(id).title == history[0].content


def test_of_processes_that_clean_up_and_write_none_loses_what_it_was_told(engine_url):
    with Store(engine_url) as store, ExitStack() as stack:
        workers = [stack.enter_context(Worker()) for _ in range(4)]
        ids = [store.sessions.create(ttl=timedelta(hours=1)).id for _ in range(40)]
        for id in ids:
            store.messages.save_many(id, [{"role": "user", "content": "hello"}] * 3)
        commands = [
            {"do": "clean_up", "url": engine_url},
            {"do": "revive", "url": engine_url, "session_ids": ids[::-1]},
            {"do": "clean_up", "url": engine_url},
            {"do": "revive", "url": engine_url, "session_ids": ids[20:]},
        ]
        first, revived, second, also_revived = run_together(workers, commands)
        gone, saved = [*first, *second], {*revived, *also_revived}
        assert len(gone) == len(set(gone))
        assert not saved & set(gone)
        assert saved | set(gone) == set(ids)
        assert {session.id for session in store.sessions.list(limit=100)} == saved
        for id in saved:
            history = store.messages.history(id, None)
            assert len(history) == 3 + (id in revived) + (id in also_revived)
            assert store.sessions.verify(id).agree
        assert store.usage.totals().rows["messages"] == sum(
            store.sessions.get(id).message_count for id in saved
        )
