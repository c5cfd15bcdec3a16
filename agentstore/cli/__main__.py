"""``python -m agentstore.cli``."""

from __future__ import annotations

from agentstore.cli import main

if __name__ == "__main__":
    main()
