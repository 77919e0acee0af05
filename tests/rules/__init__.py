"""Rule files: read, written, matched, compiled, read back, checked."""
