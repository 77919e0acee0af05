"""What a GGUF file contains."""
