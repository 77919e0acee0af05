"""Number ranges that people write into brackets: `[30-59]` is one character, not 30 to 59."""

import re

_BRACKETS = re.compile(r"\[([\d\-|,]+)\]")
_RANGE = re.compile(r"(\d+)-(\d+)")


def number_ranges(pattern: str) -> list[tuple[int, int]]:
    """Ranges in brackets that can only be meant as numbers: with an end of two digits or more."""
    return [
        (int(match[1]), int(match[2]))
        for content in _BRACKETS.findall(pattern)
        for item in re.split(r"[|,]", content)
        if (match := _RANGE.fullmatch(item)) and _is_meant(match[1], match[2])
    ]


def _is_meant(low: str, high: str) -> bool:
    return max(len(low), len(high)) > 1 and int(low) < int(high) < 1000


def meant_numbers(pattern: str) -> set[int]:
    return {number for low, high in number_ranges(pattern) for number in range(low, high + 1)}


def mend_number_ranges(pattern: str) -> str:
    """The same pattern with alternations: `(?:30|31|…|59)`."""

    def mended(match: "re.Match[str]") -> str:
        if not number_ranges(match[0]):
            return match[0]
        numbers: list[int] = []
        for item in re.split(r"[|,]", match[1]):
            ends = [int(end) for end in item.split("-") if end]
            numbers += range(ends[0], ends[-1] + 1) if ends else []
        return f"(?:{'|'.join(map(str, numbers))})"

    return _BRACKETS.sub(mended, pattern)


def number_range_remedy(pattern: str) -> str | None:
    """What to write instead of the first such range."""
    found = number_ranges(pattern)
    if not found:
        return None
    low, high = found[0]
    numbers = [str(number) for number in range(low, high + 1)]
    shown = numbers if len(numbers) < 5 else [*numbers[:2], "…", numbers[-1]]
    return f"brackets hold characters, not numbers: write (?:{'|'.join(shown)})"
