"""ChatKit's stores: threads last, pages are whole, and users are kept apart."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from chatkit.store import NotFoundError
from chatkit.types import (
    AssistantMessageContent,
    AssistantMessageItem,
    AttachmentCreateParams,
    ClientToolCallItem,
    ClosedStatus,
    FileAttachment,
    HiddenContextItem,
    ImageAttachment,
    InferenceOptions,
    ThreadMetadata,
    UserMessageItem,
    UserMessageTagContent,
    UserMessageTextContent,
    WidgetItem,
)
from chatkit.widgets import Card, Text

from agentstore import AsyncStore, Store
from agentstore.errors import AlreadyExists, AttachmentTooLarge, InvalidInput
from agentstore.integrations.chatkit import AgentStoreAttachmentStore, AgentStoreChatKitStore

TRAPS = "NUL \x00, a lone surrogate \ud800, 😀, 北京"
ANN, BOB = (SimpleNamespace(user_id=name) for name in ("ann", "bob"))
NOW = datetime(2026, 3, 29, 2, 30)  # noqa: DTZ001 - ChatKit makes such


def run(coroutine):
    return asyncio.run(coroutine)


def of(store):
    return AgentStoreChatKitStore(store, lambda context: context.user_id)


def files_of(store):
    return AgentStoreAttachmentStore(
        store, lambda context: context.user_id, lambda id: f"https://files.example.org/{id}"
    )


def a_thread(id="t", minutes=0, **given):
    return ThreadMetadata(id=id, created_at=NOW + timedelta(minutes=minutes), **given)


def ask(text, id="m"):
    return UserMessageItem(
        id=id,
        thread_id="t",
        created_at=NOW,
        content=[UserMessageTextContent(text=text)],
        attachments=[],
        inference_options=InferenceOptions(),
    )


def answer(*texts, id="a"):
    content = [AssistantMessageContent(text=text) for text in texts]
    return AssistantMessageItem(id=id, thread_id="t", created_at=NOW, content=content)


PLACE = {"thread_id": "t", "created_at": datetime(2026, 3, 29, 2, 30, 1, 7, tzinfo=UTC)}
ITEMS = [
    ask(TRAPS),
    UserMessageItem(id="m2",
        content=[UserMessageTextContent(text="of "),
            UserMessageTagContent(id="x", text="@x", data={"big": 2**70}, group=None)],
        attachments=[FileAttachment(id="f", name=TRAPS, mime_type="text/plain",
                metadata={"own": 1})], quoted_text="q",
        inference_options=InferenceOptions(model="m"), **PLACE),
    answer("one", "two"),
    answer(id="a2"),
    ClientToolCallItem(id="c", call_id="1", name="look", arguments={"a": [1, None]}, **PLACE),
    WidgetItem(id="w", widget=Card(children=[Text(value=TRAPS)]), copy_text="c", **PLACE),
    HiddenContextItem(id="h", content={"any": [TRAPS, 1.5]}, **PLACE),
]  # fmt: skip


def test_a_thread_comes_back_equal_in_another_process(engine_url):
    threads = [
        a_thread(title=TRAPS, metadata={"k": TRAPS}, status=ClosedStatus(reason="r")),
        a_thread("empty"),
    ]

    async def save():
        async with AsyncStore(engine_url) as store:
            for thread in threads:
                await of(store).save_thread(thread, ANN)
            for item in ITEMS:
                await of(store).add_thread_item("t", item, ANN)

    async def read():
        async with AsyncStore(engine_url) as store:
            ours = of(store)
            assert [await ours.load_thread(thread.id, ANN) for thread in threads] == threads
            items = await ours.load_thread_items("t", None, 20, "asc", ANN)
            assert items.data == [await ours.load_item("t", item.id, ANN) for item in ITEMS]
            return items.data

    run(save())
    assert run(read()) == ITEMS


def test_pages_are_whole_in_both_directions(opening_async):
    async def pages(load, order):
        found, after = [], None
        while True:
            page = await load(2, after, order)
            assert page.data
            found += [each.id for each in page.data]
            assert len(page.data) == 2 or not page.has_more
            if not page.has_more:
                assert page.after is None
                return found
            after = page.after

    async def read():
        async with opening_async() as store:
            ours = of(store)
            for n in (2, 0, 1, 1):  # two were created at the same time
                name = f"t{n}" if n != 1 else f"t1{await taken(ours)}"
                await ours.save_thread(a_thread(name, minutes=n), ANN)
            await ours.save_thread(a_thread(), BOB)
            for n in range(5):  # all at the same time
                await ours.add_thread_item("t0", answer(id=f"i{n}"), ANN)
            await store.scoped("ann").sessions.create(title="of another program")

            async def threads(limit, after, order):
                return await ours.load_threads(limit, after, order, ANN)

            async def items(limit, after, order):
                return await ours.load_thread_items("t0", after, limit, order, ANN)

            expected = ["t0", "t10", "t11", "t2"], [f"i{n}" for n in range(5)]
            for load, ids in zip((threads, items), expected, strict=True):
                assert await pages(load, "asc") == ids
                assert await pages(load, "desc") == ids[::-1]
                with pytest.raises(NotFoundError):
                    await load(2, "none", "asc")

    async def taken(ours):
        return sum(t.id[:2] == "t1" for t in (await ours.load_threads(9, None, "asc", ANN)).data)

    run(read())


def test_an_item_that_changes_stays_in_its_place_and_is_found_as_it_is(opening_async):
    async def change():
        async with opening_async() as store:
            ours = of(store)
            await ours.save_thread(a_thread(title="one"), ANN)
            for item in (ask("Where?"), answer("aubergine"), ask("And?", id="m2")):
                await ours.add_thread_item("t", item, ANN)
            await ours.save_item("t", ask("who says that?", id="a"), ANN)
            await ours.save_item("t", answer("courgette"), ANN)
            await ours.add_thread_item("t", ask("Where?"), ANN)  # again, as after a cancelled call
            with pytest.raises(AlreadyExists):
                await ours.add_thread_item("t", ask("When?"), ANN)
            await ours.save_thread(a_thread(title="two"), ANN)
            id = ours.session_id("t", ANN)
            shown = await store.messages.history(id)
            assert [(m.role, m.content) for m in shown] == [
                ("user", "Where?"),
                ("assistant", "courgette"),
                ("user", "And?"),
            ]
            assert (await store.sessions.get(id)).title == "two"
            assert not await store.messages.search("aubergine")
            assert [h.message.session_id for h in await store.messages.search("courgette")] == [id]
            await ours.save_item("t", HiddenContextItem(id="m", content={}, **PLACE), ANN)
            await ours.save_item("t", answer("new", id="new"), ANN)
            page = await ours.load_thread_items("t", None, 9, "asc", ANN)
            assert [item.id for item in page.data] == ["m", "a", "m2", "new"]
            assert (await ours.load_item("t", "m", ANN)).type == "hidden_context_item"
            await ours.delete_thread_item("t", "a", ANN)
            await ours.delete_thread_item("t", "a", ANN)
            with pytest.raises(NotFoundError):
                await ours.load_item("t", "a", ANN)
            await ours.delete_thread("t", ANN)
            await ours.delete_thread("t", ANN)
            with pytest.raises(NotFoundError):
                await ours.load_thread("t", ANN)
            for late in (ours.add_thread_item, ours.save_item):
                with pytest.raises(NotFoundError):
                    await late("t", answer("late"), ANN)

    run(change())


def test_another_user_s_threads_are_as_if_they_did_not_exist(opening_async):
    async def try_all():
        async with opening_async() as store:
            ours, files = of(store), files_of(store)
            await ours.save_thread(a_thread(title="of Ann"), ANN)
            await ours.add_thread_item("t", ask("of Ann"), ANN)
            file = FileAttachment(id="f", name="of Ann", mime_type="text/plain")
            await ours.save_attachment(file, ANN)
            await files.save_bytes("f", b"of Ann", ANN)
            for missing in (
                ours.load_thread("t", BOB),
                ours.load_item("t", "m", BOB),
                ours.add_thread_item("t", ask("of Bob"), BOB),
                ours.save_item("t", ask("of Bob"), BOB),
                ours.load_attachment("f", BOB),
                files.save_bytes("f", b"of Bob", BOB),
                files.load_bytes("f", BOB),
            ):
                with pytest.raises(NotFoundError):
                    await missing
            for gone in (
                ours.delete_thread("t", BOB),
                ours.delete_thread_item("t", "m", BOB),
                ours.delete_attachment("f", BOB),
                files.delete_attachment("f", BOB),
            ):
                await gone
            assert (await ours.load_threads(9, None, "asc", BOB)).data == []
            assert (await ours.load_thread_items("t", None, 9, "asc", BOB)).data == []
            await ours.save_thread(a_thread(title="of Bob"), BOB)
            await ours.save_attachment(file.model_copy(update={"name": "of Bob"}), BOB)
            assert (await ours.load_thread("t", ANN)).title == "of Ann"
            assert await ours.load_item("t", "m", ANN) == ask("of Ann")
            assert await ours.load_attachment("f", ANN) == file
            assert await files.load_bytes("f", ANN) == b"of Ann"
            await store.users.delete("ann")
            assert {s.user_id for s in (await store.sessions.list()).items} == {"bob"}

    run(try_all())


@pytest.mark.parametrize("nobody", [None, 7, b"ann"])
def test_a_context_that_names_no_user_is_refused_in_words(nobody, engine_url):
    async def try_all():
        async with AsyncStore(engine_url) as store:
            ours = AgentStoreChatKitStore(store, lambda _: nobody)
            file = FileAttachment(id="f", name="f", mime_type="text/plain")
            for call in (ours.save_thread(a_thread(), ANN), ours.save_attachment(file, ANN)):
                with pytest.raises(
                    InvalidInput, match=f"must be.* str, not {type(nobody).__name__}"
                ):
                    await call

    run(try_all())


def test_a_file_is_sent_in_two_steps_and_lasts(engine_url):
    async def send():
        async with AsyncStore(engine_url) as store:
            ours, files = of(store), files_of(store)
            made = []
            kinds = ("a.txt", "text/plain"), ("b.png", "image/png"), ("c", ""), ("d", "unknown")
            for name, kind in kinds:
                asked = AttachmentCreateParams(name=name, size=1, mime_type=kind)
                made.append(await files.create_attachment(asked, ANN))
                await ours.save_attachment(made[-1], ANN)
                with pytest.raises(NotFoundError):
                    await files.load_bytes(made[-1].id, ANN)
                for data in (b"first", name.encode()):
                    await files.save_bytes(made[-1].id, data, ANN)
            return made

    async def read(made):
        async with AsyncStore(engine_url) as store:
            ours, files = of(store), files_of(store)
            for attachment in made:
                assert await files.load_bytes(attachment.id, ANN) == attachment.name.encode()
                found = await ours.load_attachment(attachment.id, ANN)
                assert found == attachment.model_copy(update={"upload_descriptor": None})
                await ours.save_attachment(found.model_copy(update={"thread_id": "t"}), ANN)
                assert (await ours.load_attachment(attachment.id, ANN)).thread_id == "t"
                assert await files.load_bytes(attachment.id, ANN) == attachment.name.encode()
                await files.delete_attachment(attachment.id, ANN)
                with pytest.raises(NotFoundError):
                    await ours.load_attachment(attachment.id, ANN)
                with pytest.raises(NotFoundError):
                    await files.load_bytes(attachment.id, ANN)

    made = run(send())
    assert [type(each) for each in made] == [FileAttachment, ImageAttachment, *[FileAttachment] * 2]
    assert str(made[1].preview_url) == f"https://files.example.org/{made[1].id}"
    run(read(made))


def test_a_file_that_is_too_large_leaves_the_one_before(engine_url):
    async def send():
        async with AsyncStore(engine_url, max_attachment_bytes=3) as store:
            files = files_of(store)
            file = FileAttachment(id="f", name="f", mime_type="text/plain")
            await of(store).save_attachment(file, ANN)
            await files.save_bytes("f", b"abc", ANN)
            with pytest.raises(AttachmentTooLarge):
                await files.save_bytes("f", b"abcd", ANN)
            assert await files.load_bytes("f", ANN) == b"abc"

    run(send())


def test_two_processes_may_write_to_a_thread_at_once(engine_url):
    async def race():
        async with AsyncStore(engine_url) as one, AsyncStore(engine_url) as other:
            stores = of(one), of(other)
            await asyncio.gather(*(s.save_thread(a_thread(title="x"), ANN) for s in stores))
            await asyncio.gather(
                *(
                    stores[n % 2].save_item("t", answer(str(n), id=f"i{n // 2}"), ANN)
                    for n in range(12)
                )
            )
            return await stores[0].load_thread_items("t", None, 20, "asc", ANN)

    found = run(race()).data
    assert sorted(item.id for item in found) == [f"i{n}" for n in range(6)]
    for item in found:
        n = 2 * int(item.id[1:])
        assert item.content[0].text in (str(n), str(n + 1))


def test_a_cancelled_call_leaves_an_item_whole_or_none(opening_async):
    async def cancel():
        async with opening_async() as store:
            ours = of(store)
            await ours.save_thread(a_thread(), ANN)
            for steps in range(8):
                item = answer("one", "two", id=f"i{steps}")
                adding = asyncio.create_task(ours.add_thread_item("t", item, ANN))
                for _ in range(steps):
                    await asyncio.sleep(0)
                adding.cancel()
                await asyncio.wait([adding])
                await ours.add_thread_item("t", item, ANN)
                assert await ours.load_item("t", item.id, ANN) == item
            assert len((await ours.load_thread_items("t", None, 20, "asc", ANN)).data) == 8

    run(cancel())


def test_ids_are_too_long_to_meet(opening_async):
    async def make():
        async with opening_async() as store:
            ours, files = of(store), files_of(store)
            ids = [
                ours.generate_thread_id(ANN),
                ours.generate_item_id("sdk_hidden_context", a_thread(), ANN),
                files.generate_attachment_id("text/plain", ANN),
            ]
            return [id.rsplit("_", 1) for id in ids]

    made = run(make())
    assert [beginning for beginning, _ in made] == ["thr", "shcx", "atc"]
    assert {len(random) for _, random in made} == {32}


def test_only_an_asynchronous_store_will_do(engine_url):
    with Store(engine_url) as store, pytest.raises(InvalidInput, match="AsyncStore"):
        of(store)


def test_a_caller_must_be_named(opening_async):
    async def ask_for_nobody():
        async with opening_async() as store:
            with pytest.raises(InvalidInput):
                await of(store).load_threads(1, None, "asc", SimpleNamespace(user_id=""))

    run(ask_for_nobody())
