"""A chat with LangChain that remembers what was said before; the model is a fake.

    pip install '.[langchain]'
    python examples/langchain_history.py    # and once more

On PostgreSQL with ``--url postgresql://…``. In a server use ``AsyncStore``, ``aget_messages`` and
``aadd_messages``, and ``store.scoped(user_id)`` for each user.
"""

import argparse

from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage

from agentstore import Store
from agentstore.integrations.langchain import AgentStoreChatMessageHistory

model = FakeListChatModel(responses=["Sunny."])


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--url", default="sqlite:///langchain.db", help="the database")
    with Store(arguments.parse_args().url) as store:
        history = AgentStoreChatMessageHistory("chat-1", store, limit=50)
        question = HumanMessage("How is the weather?")
        answer = model.invoke([*history.messages, question])
        history.add_messages([question, answer])
        print(str(history).replace("\n", " "))


if __name__ == "__main__":
    main()
