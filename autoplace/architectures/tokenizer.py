"""A tokenizer without a language, for files with random weights that llama.cpp shall load."""

SPECIAL = ("<unk>", "<s>", "</s>")
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""llama.cpp's `llama_token_type`."""


def tokenizer_metadata(vocab: int) -> dict[str, object]:
    """`tokenizer.ggml.*` of a SentencePiece vocabulary: specials, the 256 bytes, made-up words.

    SentencePiece with byte tokens needs no merges and no pre-tokeniser, and turns any text into
    tokens and back. A vocabulary too small for the bytes gets words only.
    """
    kinds = [_UNKNOWN, _CONTROL, _CONTROL]
    tokens = list(SPECIAL)
    if vocab >= len(SPECIAL) + 256:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        kinds += [_BYTE] * 256
    words = [f"\u2581w{number}" for number in range(len(tokens), vocab)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *words][:vocab],
        "tokenizer.ggml.scores": [-float(number) for number in range(vocab)],
        "tokenizer.ggml.token_type": [*kinds, *[_NORMAL] * len(words)][:vocab],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": False,
    }
