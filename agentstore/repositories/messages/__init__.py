"""Messages: appending, streaming, reading histories, taking back."""
