"""The line of a branch: which messages it shows, and what changes it."""
