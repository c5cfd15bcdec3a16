"""Work that settles first: whose cancellations reach it, and whose do not."""

import asyncio

from agentstore.execution.unit import OwnTask, finished


async def slow() -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)
    except TimeoutError:
        return "too slow"
    return "done"


def test_a_limit_of_time_inside_such_work_ends_it() -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            assert await OwnTask(slow()) == "too slow"
            assert await finished(slow()) == "too slow"

    asyncio.run(run())


def test_whoever_cancels_all_tasks_of_a_loop_does_not_reach_it() -> None:
    async def run() -> None:
        may_end = asyncio.Event()

        async def work() -> str:
            await may_end.wait()
            return "done"

        own = OwnTask(work())
        waiting = asyncio.create_task(finished(work()))
        await asyncio.sleep(0)  # it has begun
        for _ in range(3):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)
        assert not own.done()
        may_end.set()
        assert await own == "done"
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    asyncio.run(run())
