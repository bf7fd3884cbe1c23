"""Mapped files that are cut: zeros and a flag instead of a signal, which everything else still gets."""

from __future__ import annotations

import signal

import pytest
from helpers.scripts import run_file

CUT = """
import mmap, os, signal
from pathlib import Path
from tarpeg.ops.decode import map_file

path = Path({path!r})
path.write_bytes(b"x" * 40_000)
(mapped, torn), again = map_file(str(path), 40_000), map_file(str(path), 40_000)
with path.open("rb") as file:
    other = mmap.mmap(file.fileno(), 40_000, prot=mmap.PROT_READ)
assert not torn[0]
os.truncate(path, 10_000)
{does}
print("alive")
"""
READ = "assert mapped.numpy().tobytes() == b'x' * 10_000 + bytes(30_000) and torn[0] and not again[1][0]"
FORKED = f"""
child = os.fork()
if not child:
    {READ}
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3 and not torn[0]
"""
LATE = f"import faulthandler; faulthandler.enable(); late = map_file(str(path), 10_000); {READ}"


@pytest.mark.parametrize(
    ("does", "status"),
    [
        (READ, 0),
        (FORKED, 0),
        (LATE, 0),
        ("del mapped; again[0].sum(); assert again[1][0] and not torn[0]", 0),
        ("other[20_000]", -signal.SIGBUS),
        (f"{READ}; other[20_000]", -signal.SIGBUS),
        ("os.kill(os.getpid(), signal.SIGBUS)", -signal.SIGBUS),
        ("array = mapped.numpy(); del mapped; array.sum()", -signal.SIGBUS),
    ],
)
def test_a_file_that_is_cut_while_it_is_mapped(tmp_path, does, status):
    done = run_file(tmp_path / "cut.py", CUT.format(path=str(tmp_path / "file"), does=does))
    assert (done.returncode, done.stdout) == (status, "" if status else "alive\n"), done.stderr
