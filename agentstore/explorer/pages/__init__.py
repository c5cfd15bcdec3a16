"""The pages of the explorer, a module each; ``explorer.application`` has their table."""
