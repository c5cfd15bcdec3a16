"""From a URL to an engine, and what revisions and administrators build on."""
