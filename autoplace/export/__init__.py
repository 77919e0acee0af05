"""The same placement as arguments for other engines."""
