"""``python -m agentstore``: the command line where its script is not in ``PATH``."""

from agentstore.cli import main

if __name__ == "__main__":
    main()
