"""The builtin engine: loads a placement and runs it."""
