"""What messages say to the models' APIs: tool calls, their results, and what must go together.

Three formats are known, each by what it looks like:

==================  ============================  ===========================================
format              a call                        its result
==================  ============================  ===========================================
chat completions    ``tool_calls``, or the older  role ``tool`` with ``tool_call_id``, or the
                    ``function_call``             older role ``function`` with ``name``
Anthropic           a block ``tool_use``          a block ``tool_result`` of a user message
Responses           an item ``..._call`` that     an item ``..._call_output``, and a few more
                    has a ``call_id``
==================  ============================  ===========================================

- ``formats`` reads one message: the calls it makes, the results it gives.
- ``glances`` looks at a history, and says of most that they are fine as they are.
- ``repairs`` reads a history, and says what to leave out, to move and to put in.
- ``pieces`` takes one message apart, for people to read.
- ``layouts`` turns a chat message into the arguments with which it is saved.

What a provider runs by itself (``server_tool_use``, ``web_search_call``, ``mcp_call``) holds its
result, or has it in the same message, so nothing has to go together with it.

The invariant: pure functions of plain values. A message of a format that is not known is left as it
is.
"""
