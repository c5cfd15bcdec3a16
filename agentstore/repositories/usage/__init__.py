"""What was used: tokens, cost, and tool calls."""
