"""From a text to the tokens that are indexed, and from a hit to the snippet that shows it."""
