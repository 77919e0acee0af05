"""Damaged GGUF headers and rule files: an answer or one line, within five seconds and 200 MB."""

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autoplace.weights.metadata import SCALARS, Cursor, ValueType
from tests.rules.two_gpus import v2_on_two_gpus

MUTATIONS = 120
GOOD = v2_on_two_gpus()
SECONDS = 5.0


@dataclass(frozen=True)
class Field:
    """A number of the header: where it is, and how it is stored."""

    kind: str
    offset: int
    form: str

    @property
    def size(self) -> int:
        return struct.calcsize(self.form)


def fields_of(header: bytes) -> Iterator[Field]:
    """All counts, lengths, types, values, dimensions and offsets of a header, in order."""
    cursor = Cursor(header, Path("good.gguf"), 4)
    yield _field("version", cursor, "<I")
    counts = []
    for _ in range(2):
        yield _field("count", cursor, "<Q", back=8)
        counts.append(cursor.u64())
    num_tensors, num_entries = counts
    for _ in range(num_entries):
        yield from _text(cursor)
        yield Field("type", cursor.offset, "<I")
        kind = cursor.value_type()
        if kind is ValueType.STRING:
            yield from _text(cursor)
        elif kind is ValueType.ARRAY:
            yield Field("type", cursor.offset, "<I")
            yield Field("count", cursor.offset + 4, "<Q")
            yield Field("length", cursor.offset + 12, "<Q")
            cursor.skip_value(kind)
        else:
            yield Field("value", cursor.offset, SCALARS[kind].format)
            cursor.skip_value(kind)
    for _ in range(num_tensors):
        yield from _text(cursor)
        yield Field("dimensions", cursor.offset, "<I")
        for _ in range(cursor.u32()):
            yield Field("dimension", cursor.offset, "<Q")
            cursor.u64()
        yield Field("type", cursor.offset, "<I")
        cursor.u32()
        yield Field("offset", cursor.offset, "<Q")
        cursor.u64()


def _field(kind: str, cursor: Cursor, form: str, back: int = 0) -> Field:
    field = Field(kind, cursor.offset, form)
    if not back:
        cursor.u32()
    return field


def _text(cursor: Cursor) -> Iterator[Field]:
    yield Field("length", cursor.offset, "<Q")
    yield Field("character", cursor.offset + 8, "<B")
    cursor.text()


def damaged(content: bytes, fields: list[Field], seed: int) -> bytes:
    """One to three numbers of the header changed, at times the file cut or bytes thrown in."""
    choose = random.Random(seed)
    changed = bytearray(content)
    kinds = sorted({field.kind for field in fields})
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        kind = choose.choice(kinds)
        field = choose.choice([one for one in fields if one.kind == kind])
        struct.pack_into(field.form, changed, field.offset, _value(field, changed, choose))
    if choose.random() < 0.1:
        del changed[choose.randrange(len(changed)) :]
    if choose.random() < 0.1:
        at = choose.randrange(fields[-1].offset)
        changed[at : at + 8] = choose.randbytes(8)
    return bytes(changed)


def _value(field: Field, content: bytearray, choose: random.Random) -> float:
    if field.form in ("<f", "<d"):
        return choose.choice((0.0, -1.0, float("inf"), float("nan"), 1e30))
    (found,) = struct.unpack_from(field.form, content, field.offset)
    old = int(found)
    if field.form == "<?":
        return 1 - old
    bits = 8 * field.size - (field.form in ("<b", "<h", "<i", "<q"))
    wild = (0, 1, 2, 7, 13, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
    near = (old + 1, old - 1, old * 2, old // 2, old + 8)
    value: int = choose.choice((*wild, *near)) % 2**bits
    return value


RULES = """\
- match: {name: '^model\\.layers\\..*\\.mlp\\.experts$'}
  replace:
    class: ktransformers.operators.experts.KTransformersExperts
    kwargs: {generate_device: cpu, prefill_device: 'cuda:0', out_device: 'cuda:0'}
  recursive: false
"""


WORDS = {
    "inspect": ["output=json"],
    "check": ["hardware=2xa6000", "engine=ktransformers-0.3", "output=json"],
}


@pytest.mark.parametrize("command", WORDS)
def test_a_damaged_header_is_answered_in_time_and_in_bounds(
    command: str, models: Path, tmp_path: Path
) -> None:
    content = (models / "tiny.gguf").read_bytes()
    fields = list(fields_of(content))
    assert len({field.kind for field in fields}) == 9
    (tmp_path / "r.yaml").write_text(RULES)
    words = [command, f"model.path={models}/tiny.gguf", *WORDS[command]]
    words += [f"rules={tmp_path}/r.yaml"] if command == "check" else []
    paths = [tmp_path / f"{seed}.gguf" for seed in range(MUTATIONS)]
    for seed, path in enumerate(paths):
        path.write_bytes(damaged(content, fields, seed))
    codes = codes_of_all("model", words, paths)
    assert codes.count(2) > MUTATIONS // 2


ALIASES = "- &a [x, x]\n" + "".join(
    f"- &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
)
BOMBS = {
    "aliases": ALIASES,
    "deep": "[" * 100_000,
    "deep mapping": "".join(f"{' ' * i}a:\n" for i in range(1000)),
    "many rules": GOOD * 100,
    "long pattern": RULES.replace("^model", "^(model|" + "x|" * 100_000 + "y)"),
    "nested pattern": RULES.replace("^model", "(" * 5_000 + "model" + ")" * 5_000),
    "counted pattern": RULES.replace("^model", "(((a{1000}){1000}){1000}){1000}"),
    "runaway pattern": RULES.replace("^model", "(.*)*(.*)*(.*)*!"),
    "long line": "# " + "x" * 1_900_000,
    "over long": "x" * 3_000_000,
    "long value": RULES.replace("'cuda:0'", "'" + "c" * 1_000_000 + "'"),
    "big number": RULES.replace("'cuda:0'", "9" * 10_000),
    "sexagesimal": RULES.replace("'cuda:0'", ":".join(["59"] * 50_000)),
}
"""Texts that are made to take long or much."""


def test_rule_files_that_are_made_to_take_much_are_answered_in_time_and_in_bounds(
    tmp_path: Path,
) -> None:
    texts = [*BOMBS.values(), *(broken(GOOD, seed) for seed in range(MUTATIONS // 4))]
    good = tmp_path / "good.yaml"
    good.write_text(GOOD)
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_text(text)
    words = ["check", f"rules={good}", "model=deepseek-v2", *WORDS["check"]]
    codes = codes_of_all("rules", words, paths)
    assert codes.count(1) > len(texts) // 2


def broken(text: str, seed: int) -> str:
    """Up to four pieces of a rule file swapped, doubled, or cut out."""
    choose = random.Random(seed)
    for _ in range(choose.randint(1, 4)):
        start, other = choose.randrange(len(text)), choose.randrange(len(text))
        piece = text[other : other + choose.choice((1, 5, 40, 400))]
        text = text[:start] + piece + text[start + choose.choice((0, len(piece), 200)) :]
    return text


def codes_of_all(key: str, words: list[str], paths: list[Path]) -> list[int]:
    """Exit codes; fails at the first file that breaks the process, takes long or too much."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.commands.fuzz_child", key, *words],
        input="\n".join(map(str, paths)),
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{paths[len(answers)].name}: {done.stderr[-2000:]}"
    assert len(answers) == len(paths)
    codes = [int(code) for code, _ in answers]
    assert set(codes) <= {0, 1, 2}
    slowest, path = max(zip((float(s) for _, s in answers), paths, strict=True))
    assert slowest < SECONDS, path.name
    return codes
