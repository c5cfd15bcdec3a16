"""ADK's session service: it does what ADK's own services do, and two processes may use it."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from agentstore import AsyncStore
from agentstore.errors import AgentStoreError, AlreadyExists, InvalidInput
from agentstore.integrations.adk import AgentStoreSessionService

TRAPS = "NUL \x00, a lone surrogate \ud800, 😀"
WHO = {"app_name": "app", "user_id": "u/1"}


def event(text="hello", author="user", delta=None, **more):
    content = types.Content(role=author, parts=[types.Part(text=text)])
    actions = EventActions(state_delta=delta or {})
    return Event(author=author, invocation_id="i", content=content, actions=actions, **more)


def parts(*given):
    return Event(
        author="agent", invocation_id="i", content=types.Content(role="model", parts=[*given])
    )


CALL = parts(types.Part(function_call=types.FunctionCall(id="c1", name="look", args={"n": 2**70})))
ANSWER = parts(
    types.Part(
        function_response=types.FunctionResponse(id="c1", name="look", response={"w": "sunny"})
    )
)
IMAGE = parts(types.Part(inline_data=types.Blob(data=b"\x00\xff", mime_type="image/png")))
EVENTS = [event(TRAPS, id="e0", timestamp=5.0), CALL, ANSWER, IMAGE, Event(author="agent")]


async def script(service):
    """Do what a service can do; give what it answered, without its times."""
    told = []

    def tell(session):
        if session is not None:
            made = session.last_update_time > 1_000  # the time of an event, or of the creation
            session = session.model_dump(exclude={"last_update_time"} if made else set())
        told.append(session)

    tell(await service.get_session(**WHO, session_id="none"))
    state = {"a": 1, "app:b": 2, "user:c": 3, "temp:d": 4, "x:y": 5}
    session = await service.create_session(**WHO, session_id=" s1 ", state=state)
    tell(session)
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**WHO, session_id="s1")
    for n, each in enumerate(EVENTS):
        timed = each.model_copy(deep=True, update={"timestamp": 2.0 * n})
        await service.append_event(session, timed)
        delta = {"a": None, f"n{n}": n, "app:b": [n], "user:e": n, "temp:f": n}
        more = event(str(n), "agent", delta, id=f"d{n}", timestamp=2.0 * n + 1)
        given = await service.append_event(session, more)
        assert [*given.actions.state_delta] == ["a", f"n{n}", "app:b", "user:e"]
        assert session.state["temp:f"] == n
    partial = event("...", "agent", partial=True)
    assert await service.append_event(session, partial) is partial
    tell(await service.get_session(**WHO, session_id="s1"))
    for recent, after in ((0, None), (1, None), (3, None), (None, 4.0), (99, 1.0)):
        config = GetSessionConfig(num_recent_events=recent, after_timestamp=after)
        tell(await service.get_session(**WHO, session_id="s1", config=config))
    tell(await service.create_session(**WHO, session_id="s2", state={"own": 1}))
    tell(await service.create_session(app_name="app", user_id="u2", session_id="s1"))
    tell(await service.create_session(app_name="other", user_id="u/1", session_id="s1"))
    for who in (WHO, {"app_name": "app"}, {"app_name": "none"}, {"app_name": "other"}):
        listed = (await service.list_sessions(**who)).sessions
        for each in listed:
            tell(each)
    told.append(await service.get_user_state(**WHO))
    told.append(await service.get_user_state(app_name="app", user_id="none"))
    await service.delete_session(**WHO, session_id="s1")
    await service.delete_session(**WHO, session_id="s1")
    tell(await service.get_session(**WHO, session_id="s1"))
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, event())
    tell(await service.create_session(**WHO, session_id="s1"))
    return told


def test_it_answers_as_adk_s_own_service_does(engine_url):
    async def run():
        async with AsyncStore(engine_url) as store:
            ours = await script(AgentStoreSessionService(store))
        theirs = await script(InMemorySessionService())
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            if isinstance(mine, dict) and "temp:f" in str(other):  # theirs keeps the object
                other["state"].pop("temp:f", None)
            assert mine == other

    asyncio.run(run())


def test_a_session_outlives_the_process_and_equals_the_one_in_hand(engine_url):
    async def run():
        async with AsyncStore(engine_url) as store:
            service = AgentStoreSessionService(store)
            session = await service.create_session(**WHO)
            for each in EVENTS:
                await service.append_event(session, each.model_copy(deep=True))
            found = await store.messages.find_by_tool(f"app/u%2F1/{session.id}", "look")
            assert len(found.items) == 1
        with pytest.raises(AgentStoreError):
            await service.get_session(**WHO, session_id=session.id)
        async with AsyncStore(engine_url) as store:
            service = AgentStoreSessionService(store)
            assert await service.get_session(**WHO, session_id=session.id) == session
            assert (await store.users.get("u/1")).name == "u/1"
            await service.append_event(session, event("after the restart"))
            assert await service.get_session(**WHO, session_id=session.id) == session

    asyncio.run(run())


def test_what_a_model_used_for_an_event_is_recorded_once(engine_url):
    async def run():
        async with AsyncStore(engine_url) as store:
            service = AgentStoreSessionService(store)
            session = await service.create_session(**WHO, session_id="s")
            used = types.GenerateContentResponseUsageMetadata(
                prompt_token_count=900, candidates_token_count=90, thoughts_token_count=10
            )
            said = event("hi", "agent", id="e1", usage_metadata=used, model_version="gemini-9")
            await service.append_event(session, event("hello"))
            await service.append_event(session, said)
            await service.append_event(session, said.model_copy(deep=True))
            (found,) = await store.usage.sum_by("model")
            assert (found.key, found.input_tokens, found.output_tokens) == ("gemini-9", 900, 100)

    asyncio.run(run())


def test_who_has_not_seen_the_newest_event_is_refused_and_nobody_else(engine_url):
    async def run():
        async with AsyncStore(engine_url) as one, AsyncStore(engine_url) as two:
            ours, theirs = AgentStoreSessionService(one), AgentStoreSessionService(two)
            mine = await ours.create_session(**WHO, session_id="s")
            other = await theirs.get_session(**WHO, session_id="s")
            await ours.append_event(mine, event("1"))
            with pytest.raises(StaleSessionError):
                await theirs.append_event(other, event("2"))
            assert [e.content.parts[0].text for e in other.events] == []
            none = GetSessionConfig(num_recent_events=0)
            light = await theirs.get_session(**WHO, session_id="s", config=none)
            await theirs.append_event(light, event("3"))
            again = await ours.get_session(**WHO, session_id="s")
            again.last_update_time = 0.0  # as of a session that was made by hand
            await asyncio.gather(*(ours.append_event(again, event(str(n))) for n in range(10)))
            assert again == await theirs.get_session(**WHO, session_id="s")
            assert len(again.events) == 12

    asyncio.run(run())


@pytest.mark.parametrize("how", ["popped", "forked", "forked, and back"])
def test_a_session_goes_on_from_what_it_shows_when_events_were_taken_from_it(engine_url, how):
    async def run():
        async with AsyncStore(engine_url) as store:
            service = AgentStoreSessionService(store)
            stale = await service.create_session(**WHO, session_id="s")
            for n in range(4):
                await service.append_event(stale, event(str(n), "agent" if n % 2 else "user"))
            [key] = [session.id async for session in store.sessions.iter()]
            if how == "popped":
                await store.messages.pop(key)
            else:
                await store.branches.create(key, name="side", from_turn=2)
            if how == "forked, and back":
                await service.append_event(
                    await service.get_session(**WHO, session_id="s"), event()
                )
                await store.branches.switch(key, "main")
            loaded = await service.get_session(**WHO, session_id="s")
            shown = [e.content.parts[0].text for e in loaded.events]
            assert shown == {"popped": ["0", "1", "2"], "forked": ["0", "1"]}.get(how, list("0123"))
            await service.append_event(loaded, event("next"))
            assert await service.get_session(**WHO, session_id="s") == loaded
            with pytest.raises(StaleSessionError):
                await service.append_event(stale, event("late"))

    asyncio.run(run())


def test_a_retried_event_changes_nothing_and_another_one_with_its_id_is_refused(engine_url):
    async def run():
        async with AsyncStore(engine_url) as store:
            service = AgentStoreSessionService(store)
            session = await service.create_session(**WHO)
            stale = session.model_copy(deep=True)
            first = event("once", delta={"n": 1}, id="e1")
            await service.append_event(session, first.model_copy(deep=True))
            await service.append_event(session, first.model_copy(deep=True))
            await service.append_event(stale, first.model_copy(deep=True))
            with pytest.raises(AlreadyExists):
                await service.append_event(session, event("another", delta={"n": 2}, id="e1"))
            there = await service.get_session(**WHO, session_id=session.id)
            assert there == session
            assert (len(there.events), there.state) == (1, {"n": 1})

    asyncio.run(run())


def test_an_event_that_cannot_be_stored_leaves_neither_events_nor_state(engine_url):
    async def run():
        async with AsyncStore(engine_url) as store:
            service = AgentStoreSessionService(store)
            session = await service.create_session(**WHO, state={"n": 1})
            bad = event("x", delta={"n": 2, "app:m": 2}, id="i" * 256)
            with pytest.raises(InvalidInput):
                await service.append_event(session, bad)
            assert session == await service.get_session(**WHO, session_id=session.id)
            assert session.state == {"n": 1}
            cancelled = asyncio.create_task(service.append_event(session, event("2")))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            there = await service.get_session(**WHO, session_id=session.id)
            await service.append_event(there, event("3"))
            assert there == await service.get_session(**WHO, session_id=session.id)
        with pytest.raises(InvalidInput, match="Pass an AsyncStore"):
            AgentStoreSessionService(None)

    asyncio.run(run())


def test_many_sessions_come_page_by_page_and_shared_state_is_in_no_list(engine_url):
    async def run():
        async with AsyncStore(engine_url) as store:
            service = AgentStoreSessionService(store)
            for n in range(7):
                await service.create_session(
                    app_name="app", user_id=f"u{n % 2}", session_id=f"s{n}", state={"app:n": n}
                )
            await store.sessions.create("u1", title="of another program")
            first, cursor = await service.list_page(app_name="app", limit=4)
            rest, end = await service.list_page(app_name="app", limit=4, cursor=cursor)
            ids = [session.id for page in (first, rest) for session in page.sessions]
            assert (ids, end) == ([f"s{n}" for n in range(6, -1, -1)], None)
            assert {s.state["app:n"] for s in first.sessions} == {6}
            listed = await service.list_sessions(app_name="app", user_id="u1")
            assert [session.id for session in listed.sessions] == ["s1", "s3", "s5"]

    asyncio.run(run())


def test_callers_at_once_lose_no_state(engine_url):
    async def run():
        async with AsyncStore(engine_url) as one, AsyncStore(engine_url) as two:

            async def add(n, store):
                service = AgentStoreSessionService(store)
                session = await service.create_session(
                    app_name="app", user_id="u", state={f"app:{n}": n}
                )
                await service.append_event(session, event(delta={f"user:{n}": n}))

            await asyncio.gather(*(add(n, (one, two)[n % 2]) for n in range(12)))
            service = AgentStoreSessionService(one)
            last = await service.create_session(app_name="app", user_id="u")
            assert {*last.state} == {f"{kind}:{n}" for kind in ("app", "user") for n in range(12)}

    asyncio.run(run())
