"""KTransformers rule files: read, write, match, compile, read back."""
