"""How much of a mapped file is in this process's memory."""

import re
from pathlib import Path


def mapped_bytes_in_memory(path: Path) -> int:
    """`Rss` of this process's maps of a file, from smaps of proc(5)."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
