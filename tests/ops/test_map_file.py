"""Mapped files that are cut: zeros and a flag instead of a signal, which everything else still gets."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.scripts import run_file
from tarpeg.ops.decode import map_file
from torch._subclasses.fake_tensor import FakeTensorMode

CUT = """
import faulthandler, mmap, os, signal
from pathlib import Path
from tarpeg.ops.decode import guard_maps, map_file

path = Path({path!r})
path.write_bytes(b"x" * 40_000)
(mapped, torn), again = map_file(str(path), 40_000), map_file(str(path), 40_000)
with path.open("rb") as file:
    other = mmap.mmap(file.fileno(), 40_000, prot=mmap.PROT_READ)
assert not torn[0]
os.truncate(path, 10_000)
signals = []
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
POOL = """
import tarpeg
from helpers.pictures import batch
(jpeg, *_), (box, *_), *_ = batch(1)
path.write_bytes(jpeg.numpy().tobytes())
maps = [map_file(str(path), len(jpeg)) for _ in range(500)]
os.truncate(path, 0)
status = tarpeg.decode_batch([image for image, _ in maps], box.expand(500, 4), 8, threads=4)[1]
assert status.all() and all(torn for _, torn in maps)
"""
DUMP = "faulthandler.enable()"
MAP = "late = map_file(str(path), 10_000)"
KILL = "os.kill(os.getpid(), signal.SIGBUS)"
IGNORE = "signal.signal(signal.SIGBUS, signal.SIG_IGN)"
HANDLE = "signal.signal(signal.SIGBUS, lambda *_: signals.append(1))"
OTHER = "other[20_000]"


@pytest.mark.parametrize(
    ("does", "status"),
    [
        ([READ], 0),
        ([FORKED], 0),
        ([POOL], 0),
        ([DUMP, MAP, READ], 0),
        ([DUMP, "guard_maps()", READ], 0),
        ([IGNORE, MAP, KILL, READ], 0),
        ([HANDLE, MAP, KILL, KILL, READ, "assert signals == [1, 1]"], 0),
        (["del mapped; again[0].sum(); assert again[1][0] and not torn[0]"], 0),
        ([OTHER], -signal.SIGBUS),
        ([READ, OTHER], -signal.SIGBUS),
        ([KILL], -signal.SIGBUS),
        ([DUMP, MAP, OTHER], -signal.SIGBUS),
        ([DUMP, MAP, KILL], -signal.SIGBUS),
        ([IGNORE, MAP, OTHER], -signal.SIGBUS),
        (["array = mapped.numpy(); del mapped; assert array.sum() == 1_200_000 and torn[0]"], 0),
    ],
)
def test_a_file_that_is_cut_while_it_is_mapped(tmp_path, does, status):
    code = CUT.format(path=str(tmp_path / "file"), does="\n".join(does))
    done = run_file(tmp_path / "cut.py", code)
    assert (done.returncode, done.stdout) == (status, "" if status else "alive\n"), done.stderr
    assert done.stderr.count("Fatal Python error") == (DUMP in does and status != 0)


def test_maps_are_made_and_released_in_any_mode_of_torch(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * (nbytes := 1 << 26))
    with torch.device("meta"):
        mapped, _ = map_file(str(path), nbytes)
    assert mapped.device.type == "cpu"
    address = mapped.data_ptr()
    with FakeTensorMode():
        del mapped
        gc.collect()
    mapped, torn = map_file(str(path), nbytes)
    assert mapped.data_ptr() == address, "a guard of the first map would repair the second"
    os.truncate(path, nbytes // 2)
    assert np.count_nonzero(mapped.numpy()) == nbytes // 2 and torn[0]


FULL = """
import os, resource
from pathlib import Path
from tarpeg.ops.decode import map_file

path = Path({path!r})
path.touch()
os.truncate(path, 8 << 30)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
before = os.listdir("/proc/self/fd")
try:
    map_file(str(path), 8 << 30)
except OSError as error:
    print(error.strerror, os.listdir("/proc/self/fd") == before)
"""


def test_a_file_that_cannot_be_mapped_is_closed(tmp_path):
    done = run_file(tmp_path / "full.py", FULL.format(path=str(tmp_path / "file")))
    assert done.stdout == "Cannot allocate memory True\n", done.stderr


LARGE = """
import os, resource
from pathlib import Path
import numpy as np
from tarpeg.ops.decode import map_file

path, nbytes = Path({path!r}), 1 << 40
path.touch()
os.truncate(path, nbytes)
with path.open("r+b") as file:
    file.seek(nbytes - 4)
    file.write(b"last")
used = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData")]
resource.setrlimit(resource.RLIMIT_DATA, (int(used[0]) * 1024 + (64 << 20), resource.RLIM_INFINITY))
mapped, torn = map_file(str(path), nbytes)
assert bytes(mapped[-4:].numpy()) == b"last" and mapped[1 << 39] == 0 and not torn[0]
os.truncate(path, nbytes - 8192)
assert not mapped[-8192:].any() and torn[0], "what replaces a part that was cut takes no memory either"
maps = [line for line in open("/proc/self/maps") if str(path) in line]
assert maps and all(line.split()[1] == "r--p" for line in maps)
print(len(mapped))
"""


def test_a_file_larger_than_memory_is_mapped_within_the_limits_of_data(tmp_path):
    done = run_file(tmp_path / "large.py", LARGE.format(path=str(tmp_path / "file")))
    assert done.stdout == f"{1 << 40}\n", done.stderr


def test_maps_end_with_the_last_view(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 40_000)

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(path))

    mapped, _ = map_file(str(path), 40_000)
    view, array = mapped[5:9], mapped.numpy()
    del mapped
    assert maps() == 1 and bytes(view.numpy()) == bytes(array[:4]) == b"xxxx"
    del view
    assert maps() == 1
    del array
    assert maps() == 0
    with pytest.raises(OSError, match=str(path)):
        map_file(str(path), 40_001)
    assert maps() == 0 and map_file(str(path), 0)[0].numel() == 0
