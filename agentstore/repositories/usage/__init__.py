"""What was used: tokens, cost, and calls of tools.

Two kinds of rows, both of a session. *Usage* is what requests to a model used in one turn of a
branch: tokens in and out, requests, model, cost. A *tool log* is one call of a tool: input,
output, duration, success. Both stay as they were recorded when messages are deleted or compacted;
they go with their session.

``Usage.sum_by`` adds usage up by one *dimension*: turn, branch, session, user, model, day or
total. ``Usage.stats`` adds up a user's messages and calls of tools in a window of time;
``ToolLogs.stats`` does so for each tool.

The invariants: money and tokens are whole numbers (money in billionths), so sums are exact and
equal on both engines; a cost that is not known is None and is counted as unknown, never as 0; a
secret in a tool log is redacted, or refused, before the row is written.

``usage`` and ``tool_logs`` are the repositories; ``rows`` prices and reads the rows of usage, and
``user_stats`` is what ``Usage.stats`` does.
"""
