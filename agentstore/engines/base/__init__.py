"""What both engines promise, as protocols, and what they share."""
