"""A chat with LlamaIndex whose memory lasts; the model is the framework's own fake.

    pip install '.[llama-index]'
    python examples/llama_index_store.py    # and once more

On PostgreSQL with ``--url postgresql://…``. In a server use ``AsyncStore`` and the asynchronous
methods, and ``store.scoped(user_id)`` for each user.
"""

import argparse

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.memory import ChatMemoryBuffer

from agentstore import Store
from agentstore.integrations.llama_index import AgentStoreChatStore


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///llama_index.db", help="the database")
    with Store(arguments.parse_args().url) as store:
        memory = ChatMemoryBuffer.from_defaults(
            chat_store=AgentStoreChatStore(store), chat_store_key="chat-1", tokenizer_fn=str.split
        )
        engine = SimpleChatEngine(llm=MockLLM(), memory=memory, prefix_messages=[])
        engine.chat("How is the weather?")
        for message in memory.get_all():
            assert isinstance(message, ChatMessage)
            print(f"{message.role.value}: {str(message.content).splitlines()[0]}")


if __name__ == "__main__":
    main()
