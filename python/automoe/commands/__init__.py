"""One small module a command: its flags, and a call."""
