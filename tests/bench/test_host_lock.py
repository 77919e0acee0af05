"""One measurement a machine: the second waits, says so, and goes on when the first one dies."""

import subprocess
import sys
from pathlib import Path

from autoplace.bench.host_lock import alone_on_this_host

HOLDER = """
import sys, time
from pathlib import Path
from autoplace.bench.host_lock import alone_on_this_host
with alone_on_this_host(print, path=Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_lets_the_waiting_one_go_on(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    said: list[str] = []

    def say(message: str) -> None:
        said.append(message)
        holder.kill()

    with alone_on_this_host(say, path=path):
        pass
    holder.wait()
    holder.stdout.close()
    assert len(said) == 1
    assert "waiting for another measurement" in said[0]


def test_a_free_lock_is_taken_without_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        with alone_on_this_host(said.append, path=tmp_path / "lock"):
            pass
    assert not said
