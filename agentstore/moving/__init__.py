"""Everything that leaves a database or comes into one: copies, backups, transcripts."""
