"""Small model files, written once by the real `synth`."""

from pathlib import Path

import pytest

from autoplace.__main__ import main


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tiny.gguf`, and `split-0000?-of-00003.gguf`."""
    folder = tmp_path_factory.mktemp("models")
    assert main(["synth", "model=tiny", f"out={folder}/tiny.gguf", "output=json"]) == 0
    assert main(["synth", "model=tiny", f"out={folder}/split.gguf", "num_shards=3"]) == 0
    return folder
