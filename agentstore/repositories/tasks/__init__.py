"""Tasks, and the queue that workers claim them from."""
