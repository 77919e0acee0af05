"""Files with random weights: readable by others, alike for a seed, whole or not there at all."""

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest

from autoplace.errors import AutoplaceError
from autoplace.units import GIB
from autoplace.weights.dequantize import dequantize
from autoplace.weights.ggml import GGMLType, TensorInfo
from autoplace.weights.gguf_file import GGUFFile
from autoplace.weights.random_weights import POOL_WEIGHTS
from autoplace.weights.synthesize import write_gguf
from tests.weights.files import METADATA, TENSORS, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def write_one(
    path: Path, info: TensorInfo, seed: int = 0
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    write_gguf(path, metadata={}, tensors=[info], seed=seed)
    return GGUFFile.open(path).data(info.name)


def weights_of(path: Path, info: TensorInfo) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return dequantize(write_one(path, info), info.ggml_type)


def test_gguf_py_reads_back_what_was_written(path: Path) -> None:
    write(path)
    theirs, ours = gguf.GGUFReader(path), GGUFFile.open(path)
    for key, value in METADATA.items():
        if isinstance(value, float):
            value = float(np.float32(value))
        if value != ["<s>", "", "tödlich"]:
            assert theirs.fields[key].contents() == value, key
    kinds = {key: theirs.fields[key].types for key in METADATA}
    assert kinds["llama.block_count"] == [gguf.GGUFValueType.UINT32]
    assert kinds["a.negative"] == [gguf.GGUFValueType.INT32]
    assert kinds["tokenizer.ggml.token_type"][1] == gguf.GGUFValueType.INT32
    assert kinds["tokenizer.ggml.scores"][1] == gguf.GGUFValueType.FLOAT32
    assert [tensor.name for tensor in theirs.tensors] == [info.name for info in TENSORS]
    for tensor in theirs.tensors:
        np.testing.assert_array_equal(
            tensor.data.reshape(-1).view("u1"), ours.data(tensor.name), tensor.name
        )


def test_numpy_values_keep_their_type(path: Path) -> None:
    metadata = {"a": np.uint16(3), "b": np.array([1, 2], np.uint8), "c": 2**40, "d": -(2**40)}
    write_gguf(path, metadata=metadata, tensors=[], seed=0)
    kinds = {key: field.types for key, field in gguf.GGUFReader(path).fields.items()}
    assert kinds["a"] == [gguf.GGUFValueType.UINT16]
    assert kinds["b"] == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT8]
    assert kinds["c"] == [gguf.GGUFValueType.UINT64]
    assert kinds["d"] == [gguf.GGUFValueType.INT64]


@pytest.mark.parametrize("value", [None, {"a": 1}, [[1, 2]], ["a", 1]])
def test_a_metadata_value_of_another_kind_is_refused(path: Path, value: object) -> None:
    with pytest.raises(AutoplaceError, match="metadata 'key': expected"):
        write_gguf(path, metadata={"key": value}, tensors=[], seed=0)
    assert not list(path.parent.iterdir())


def test_the_alignment_of_the_metadata_is_kept(path: Path) -> None:
    write_gguf(path, metadata={"general.alignment": 256}, tensors=TENSORS, seed=0, num_shards=1)
    gguf_file = GGUFFile.open(path)
    assert all(gguf_file.location(info.name)[1] % 256 == 0 for info in TENSORS)


def test_the_same_seed_writes_the_same_file_and_another_does_not(path: Path) -> None:
    info = TensorInfo("blk.0.attn_q.weight", (8, 256), GGMLType.Q4_K)
    first, again, other = (write_one(path, info, seed).copy() for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("rows", [64, 20_000])
@pytest.mark.parametrize("ggml_type", [GGMLType.F16, GGMLType.Q4_K, GGMLType.Q5_0, GGMLType.Q6_K])
def test_a_linear_keeps_the_size_of_its_input(path: Path, ggml_type: GGMLType, rows: int) -> None:
    info = TensorInfo("blk.0.ffn_up.weight", (rows, 768), ggml_type)
    assert (info.n_elements > POOL_WEIGHTS) == (rows > 64)
    weights = weights_of(path, info)
    assert weights.std() == pytest.approx(768**-0.5, rel=0.02)
    assert abs(weights.mean()) < 0.02 * 768**-0.5


@pytest.mark.parametrize(
    ("name", "shape", "mean", "std"),
    [
        ("blk.0.attn_norm.weight", (4096,), 1.0, 0.1),
        ("blk.0.exp_probs_b.bias", (4096,), 0.0, 0.02),
        ("blk.0.ffn_gate_inp.weight", (64, 256), 0.0, 2 / 16),
        ("blk.0.attn_k_b.weight", (4, 256, 64), 0.0, 1 / 16),
        ("rope_freqs.weight", (32,), 1.0, 0.0),
        ("blk.0.attn_output.weight", (64, 128), 0.0, 1 / 16),  # one layer: 1/sqrt(128 · 2)
        ("blk.0.ffn_down_exps.weight", (4, 64, 128), 0.0, 1 / 16),
    ],
)
def test_a_tensor_that_is_no_plain_linear_has_its_own_distribution(
    path: Path, name: str, shape: tuple[int, ...], mean: float, std: float
) -> None:
    weights = weights_of(path, TensorInfo(name, shape, GGMLType.F32))
    assert weights.mean() == pytest.approx(mean, abs=0.01)
    assert weights.std() == pytest.approx(std, rel=0.1)


def test_the_embedding_is_scaled_as_the_output_where_it_is_the_output(path: Path) -> None:
    embedding = TensorInfo("token_embd.weight", (512, 256), GGMLType.F32)
    output = TensorInfo("output.weight", (512, 256), GGMLType.F32)

    def std(tensors: list[TensorInfo]) -> float:
        write_gguf(path, metadata={}, tensors=tensors, seed=0)
        data = GGUFFile.open(path).data("token_embd.weight")
        return float(data.view(np.float32).std())

    assert std([embedding]) == pytest.approx(2 / 16, rel=0.02)
    assert std([embedding, output]) == pytest.approx(1.0, rel=0.02)


def test_no_two_experts_of_a_big_tensor_are_alike(path: Path) -> None:
    info = TensorInfo("blk.0.ffn_up_exps.weight", (16, 1024, 2048), GGMLType.Q4_K)
    assert info.n_elements > 4 * POOL_WEIGHTS
    experts = write_one(path, info).reshape(16, -1)
    assert len(np.unique(experts[:, :4096], axis=0)) == 16


@pytest.mark.parametrize("ggml_type", [GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0])
def test_a_seed_gives_the_same_weights_in_every_type_that_rounds(
    path: Path, ggml_type: GGMLType
) -> None:
    shape = (10_000, 1024)
    assert math.prod(shape) > 2 * POOL_WEIGHTS
    exact = weights_of(path, TensorInfo("blk.0.ffn_up.weight", shape, GGMLType.F32))
    rounded = weights_of(path, TensorInfo("blk.0.ffn_up.weight", shape, ggml_type))
    np.testing.assert_allclose(rounded, exact, atol=0.025 * exact.std())


def test_progress_ends_at_the_total(path: Path) -> None:
    calls: list[tuple[int, int]] = []
    write_gguf(
        path, metadata={}, tensors=TENSORS, seed=0, progress=lambda *call: calls.append(call)
    )
    total = sum(info.n_bytes for info in TENSORS)
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)


def test_a_sparse_file_of_377_gib_costs_no_disk(path: Path) -> None:
    infos = [
        TensorInfo(f"blk.{i}.ffn_up_exps.weight", (256, 2048, 7168), GGMLType.Q4_K)
        for i in range(179)
    ]
    write_gguf(path, metadata=METADATA, tensors=infos, seed=0, sparse=True)
    assert path.stat().st_size > 350 * GIB
    assert path.stat().st_blocks * 512 < 1 << 20
    gguf_file = GGUFFile.open(path)
    assert tuple(gguf_file.tensors.values()) == tuple(infos)
    assert not gguf_file.data("blk.178.ffn_up_exps.weight")[-1000:].any()


def test_shards_are_of_about_equal_size_and_never_empty(path: Path) -> None:
    infos = [TensorInfo(f"t{i}", (size, 1024), GGMLType.F32) for i, size in enumerate([4] * 12)]
    big_last = [*infos, TensorInfo("big", (1024, 1024), GGMLType.F32)]
    for tensors, counts in ((infos, [4, 4, 4]), (big_last, [11, 1, 1])):
        shards = write_gguf(path, metadata={}, tensors=tensors, seed=0, num_shards=3)
        assert [len(shard.header.tensors) for shard in GGUFFile.open(shards[0]).shards] == counts
    with pytest.raises(AutoplaceError, match=r"expected 1 to 12 shards, .* but got 13"):
        write_gguf(path, metadata={}, tensors=infos, seed=0, num_shards=13)


# Failures leave nothing behind.


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """As on a full disk, writing beyond the limit fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_write_that_fails_leaves_nothing(path: Path, num_shards: int) -> None:
    small_then_big = [TensorInfo(f"t{i}", (size,), GGMLType.F32) for i, size in enumerate((1, 999))]
    with (
        file_size_limit(3000),
        pytest.raises(AutoplaceError, match=r"^cannot write .* \(\d.* KiB\): File too large$"),
    ):
        write(path, small_then_big, num_shards=num_shards)
    assert not list(path.parent.iterdir())


def test_an_interrupted_write_leaves_nothing_and_keeps_the_old_file(path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, metadata={}, tensors=TENSORS, seed=0, progress=interrupt)
    assert [inside.name for inside in path.parent.iterdir()] == ["model.gguf"]
    assert path.read_text() == "old"


def test_a_model_bigger_than_the_disk_is_refused_before_writing(path: Path) -> None:
    info = TensorInfo("t", (1 << 30, 1 << 20), GGMLType.F32)
    with pytest.raises(AutoplaceError, match=r"needs 4194304.00 GiB but the disk has .* free"):
        write_gguf(path, metadata={}, tensors=[info], seed=0)
    assert not list(path.parent.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AutoplaceError, match=r"expected .*/absent to be a directory that exists"):
        write(tmp_path / "absent" / "model.gguf")
    (tmp_path / "file").touch()
    with pytest.raises(AutoplaceError, match=r"cannot write .*: Not a directory"):
        write(tmp_path / "file" / "model.gguf")


def test_a_directory_in_the_way_is_named(path: Path) -> None:
    path.mkdir()
    with pytest.raises(AutoplaceError, match="expected a file name but it is a directory"):
        write(path)
    assert os.listdir(path.parent) == ["model.gguf"]
