"""What the pages of the explorer share; see ``agentstore.explorer``."""
