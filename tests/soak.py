"""Training and cache builds under random faults for SOAK_SECONDS: `make soak`.

The driver forks one trainee after another. A trainee trains in episodes, by a plain loop or Lightning, on
shards, a cache or streams, or builds the cache; it may open 64 files, and /dev/shm has 1 MB. The driver
disturbs the episodes by faults that a seed draws. Every batch must be that of an undisturbed run, or there is
an error that names the cause, after which the trainee goes on from its checkpoint. After each episode,
children, descriptors, threads and memory must be as at its beginning. A failure prints the faults and what
repeats them: SOAK_SEED, and SOAK_FIRST, the number of the trainee.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import json
import logging
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "datamodules")]

import lightning  # noqa: E402 - once, before all forks
import tarpeg  # noqa: E402
import torch  # noqa: E402
import webdataset  # noqa: E402, F401
from helpers.loaders import digest  # noqa: E402
from helpers.scripts import PARENT, SESSION, live_processes, wait_until  # noqa: E402
from helpers.small_caches import shard_files  # noqa: E402
from helpers.training import trainer  # noqa: E402

KINDS = ("shards", "cache", "stream", "lightning", "build")
ENGINES = [{"workers": workers, "prefetch": prefetch} for workers in (1, 2, 3) for prefetch in (1, 3)]
ENGINES += [{"workers": 0, "threads": 0}, {"workers": 0, "threads": 2}, {"workers": 2, "readahead": 3}]
STREAMED = [{"workers": 0, "threads": 2}, {"workers": 2}]  # whose batches depend on the number of workers
EPOCHS, SHARDS = 3, 6
SILENT_S, LEFT_S = 90, 30  # without any event: a hang; until the processes of an ended trainee have ended
SLACK_MB = 32
FILES, DISK_MB, SHM_MB = 64, 24, 1
SHORT = "[Mm]emory|allocat|can't start new thread|did not start|cannot start"  # of memory
UNLIMITED = (resource.RLIM_INFINITY,) * 2


def shards_of(folder: Path, name: str = "train") -> str:
    return f"{folder}/{name}/train-{{000000..{SHARDS - 1:06d}}}.tar"


def data_of(kind: str, folder: Path, engine: dict[str, int]) -> tarpeg.ShardDataModule:
    source: object = shards_of(folder, "cache" if kind == "cache" else "train")
    if kind == "stream":  # half as files, half by a command
        paths = [f"{folder}/train/train-{number:06d}.tar" for number in range(SHARDS)]
        source = [f"pipe:cat {path}" if number % 2 else path for number, path in enumerate(paths)]
    split = tarpeg.Split(source, tarpeg.RandomResizedCrop(64), flip=0.5, streaming=kind == "stream")
    # A damaged image is an error: a substitute would be another batch.
    return tarpeg.ShardDataModule(split, batch_size=16, seed=3, keys=True, on_error="raise", **engine)


def table_of(kind: str, engine: dict[str, int]) -> str:
    return f"stream of {engine['workers']}" if kind == "stream" else "shards"


def prepare(folder: Path) -> None:
    """Make the shards; write the cache and the digests of all batches of undisturbed runs."""
    photos = tarpeg.Photos([(200, 240), (160, 128)], progressive=0.1, gray=0.1, exif=0.2)
    tarpeg.SyntheticShards(str(folder / "train"), 40 * SHARDS, 1, photos, 40)()
    tarpeg.build_cache(shards_of(folder), folder / "expected", executor=0)
    tables = {}
    for kind, engine in (("shards", ENGINES[0]), ("stream", STREAMED[0]), ("stream", STREAMED[1])):
        loader = data_of(kind, folder, engine).train_dataloader()
        tables[table_of(kind, engine)] = [[digest([batch]) for batch in loader] for _ in range(EPOCHS)]
        loader.close()
    (folder / "expected.json").write_text(json.dumps(tables))


class Wrong(BaseException):
    """A batch, or a cache, that is not as expected."""


class Net(lightning.LightningModule):
    """Has the trainee check the batches, saves checkpoints, and stops at the end of the episode."""

    def __init__(self, trainee: Trainee) -> None:
        super().__init__()
        self.trainee, self.net = trainee, torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        self.trainee.check(batch, self.trainer.current_epoch, index)
        return self.net(batch.label[:1, None].float()).sum()

    def on_train_batch_end(self, outputs, batch, index):
        if index % 3 == 0:
            self.trainee.save(self.trainer.save_checkpoint)
        self.trainer.should_stop |= self.trainee.left <= 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Trainee:
    """The process that trains. It sends events as lines of JSON, and waits for answers to errors and ends."""

    def __init__(self, folder: Path, end: socket.socket) -> None:
        self.folder, self.end, self.answers = folder, end, end.makefile()
        self.expected = json.loads((folder / "expected.json").read_text())

    def tell(self, event: str, *values: object, wait: bool = False) -> None:
        self.end.sendall(json.dumps([event, *values]).encode() + b"\n")
        if wait and not self.answers.readline():
            sys.exit()

    def run(self, episodes: list[dict]) -> None:
        warnings.simplefilter("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        calm = {"engine": STREAMED[0], "steps": 9, "pause": 0, "memory": 0}
        first = [{"kind": kind, **calm} for kind in ("shards", "lightning", "stream")]
        most = 99
        for number, episode in enumerate([*first, *episodes], -len(first)):
            if episode["kind"] == "cache" and not (self.folder / "cache" / "manifest.json").exists():
                self.build()
            self.tell("begin", number)
            self.episode(**episode)
            gc.collect()
            wait_until(lambda most=most: len(os.listdir("/proc/self/task")) <= most, 3)
            status = Path("/proc/self/status").read_text()
            memory = sum(int(part) for part in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status)) >> 10
            children = len(live_processes(PARENT, os.getpid(), zombies=True))
            files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
            threads = len(os.listdir("/proc/self/task"))
            most = threads if number < 0 else most
            sizes = {"children": children, "files": len(files), "threads": threads, "MB": memory}
            self.tell("end", sizes, files, wait=True)

    def episode(self, kind: str, engine: dict[str, int], steps: int, pause: float, memory: int, **_) -> None:
        self.kind, self.engine, self.left, self.pause = kind, engine, steps, pause
        self.table = self.expected[table_of(kind, engine)]
        self.place = self.folder / f"{kind} {table_of(kind, engine)}.ckpt"
        if memory:
            used = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10
            resource.setrlimit(resource.RLIMIT_AS, (used + (memory << 20), resource.RLIM_INFINITY))
        while self.left > 0:
            try:
                getattr(self, kind, self.loop)()
            except Exception as error:
                resource.setrlimit(resource.RLIMIT_AS, UNLIMITED)
                text, trace = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
                self.tell("error", text, trace, wait=True)
        resource.setrlimit(resource.RLIMIT_AS, UNLIMITED)

    def check(self, batch, epoch: int, number: int) -> None:
        if digest([batch]) != self.table[epoch][number]:
            raise Wrong(f"batch {number} of epoch {epoch} of {self.kind}, {self.engine}, is wrong")
        self.left -= 1
        self.tell("step")
        time.sleep(self.pause)

    def save(self, write) -> None:
        draft = self.place.with_suffix(".new")
        write(draft)
        draft.replace(self.place)

    def loop(self) -> None:
        """Train by a plain loop, from the checkpoint to the end of the episode or of the last epoch."""
        loader = data_of(self.kind, self.folder, self.engine).train_dataloader()
        save = functools.partial(self.save, lambda path: path.write_text(json.dumps(loader.state_dict())))
        state = json.loads(self.place.read_text()) if self.place.exists() else {"epoch": EPOCHS}
        try:
            if (state["epoch"], state.get("batches")) < (EPOCHS - 1, state.get("len")):
                loader.load_state_dict(state)
            while True:
                for batch in loader:
                    state = loader.state_dict()
                    self.check(batch, state["epoch"], state["batches"] - 1)
                    if state["batches"] % 3 == 0 and self.kind != "stream":  # which begins its epoch again
                        save()
                    if self.left <= 0:
                        return
                save()
                if state["epoch"] == EPOCHS - 1:
                    return
        finally:
            loader.close()

    def lightning(self) -> None:
        data = data_of("shards", self.folder, self.engine)
        place = self.place if self.place.exists() else None
        runner = trainer(self.folder, max_epochs=EPOCHS, num_sanity_val_steps=0)
        runner.fit(Net(self), datamodule=data, ckpt_path=place, weights_only=False)
        if self.left > 0:
            self.place.unlink(missing_ok=True)

    def build(self) -> None:
        cache = self.folder / "cache"
        if (cache / "manifest.json").exists():
            shutil.rmtree(cache)
        self.tell("step")
        executor = self.engine["workers"] % 3
        step = functools.partial(self.tell, "step")
        tarpeg.build_cache(shards_of(self.folder), cache, None, executor, progress=lambda _: step())
        if shard_files(cache) != shard_files(self.folder / "expected"):
            raise Wrong("the cache is not that of an undisturbed build")
        self.left = 0


class Fault:
    """A fault. ``error``: pattern of the errors that it may cause; None if it must cause none."""

    def __init__(self, name: str, run: Run) -> None:
        self.name, self.run, self.draw, self.error, self.undo = name, run, run.draw, None, None

    def begin(self) -> None:
        with contextlib.suppress(OSError):  # the disk may be full
            getattr(self, self.name)()
        self.run.note(f"{self.name} {self.error or ''}")

    def end(self) -> None:
        (self.run.folder / "filler").unlink(missing_ok=True)  # what is put back needs room
        undo, self.undo = self.undo, None
        if undo is not None:
            undo()

    def kill(self) -> None:
        """SIGKILL a worker, a process of the builder, or a command of a stream."""
        self.error = "was killed by SIGKILL|died with status -9|cat .* cannot be read as a stream"
        for victim in self.draw.sample(self.run.processes(), 1):
            if victim != self.run.pid:
                send(victim, signal.SIGKILL)

    def stop(self) -> None:
        """SIGSTOP any process for a while."""
        victim = self.draw.choice(self.run.processes() or [self.run.pid])
        send(victim, signal.SIGSTOP)
        self.undo = functools.partial(send, victim, signal.SIGCONT)

    def finish(self) -> None:
        """End the trainee; the next one goes on."""
        self.run.is_ended = True
        send(self.run.pid, self.draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))

    def damage(self) -> None:
        """Cut, overwrite, replace or remove a file of the trainee. What was written to gets a new time."""
        folder = self.run.folder / ("cache" if self.run.kind == "cache" else "train")
        files = {path for kind in ("train*.tar", "train*.idx", "manifest.json") for path in folder.glob(kind)}
        path = self.draw.choice(sorted(files - self.run.damaged))
        how = self.draw.choice(["cut", "overwrite", "replace", "remove"])
        content, found = path.read_bytes(), path.stat()
        place, junk = self.draw.randrange(len(content)), self.draw.randbytes(self.draw.randrange(999, 99_999))
        self.error = f"{re.escape(str(path))}|{re.escape(str(path.with_suffix('.tar')))}"
        time = found.st_mtime_ns if how in ("replace", "remove") and self.draw.random() < 0.5 else None
        self.undo = functools.partial(self.put_back, path, content, time)
        self.run.damaged.add(path)
        match how:
            case "cut":
                os.truncate(path, place)
            case "overwrite":
                with path.open("r+b") as file:
                    os.pwrite(file.fileno(), junk[: len(content) - place], place)
            case "replace":
                replace(path, self.draw.choice([b"<html>404</html>" * 99, b"", content]))
            case "remove":
                path.unlink()

    def put_back(self, path: Path, content: bytes, mtime_ns: int | None) -> None:
        self.run.damaged.remove(path)
        replace(path, content, mtime_ns)

    def index(self) -> None:
        """Damage all saved indexes: they are made again."""
        for path in (self.run.folder / "train").glob("*.index"):
            content = path.read_bytes()
            path.write_bytes(self.draw.choice([content[: len(content) // 2], self.draw.randbytes(99)]))

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        self.error = "No space left on device|unexpected pos|PytorchStreamWriter|failed writing"
        with (self.run.folder / "filler").open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass


def replace(path: Path, content: bytes, mtime_ns: int | None = None) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(content)
    if mtime_ns is not None:
        os.utime(draft, ns=(mtime_ns, mtime_ns))
    draft.replace(path)


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class SoakError(Exception):
    """What was found."""


class Run:
    """One trainee and its faults, drawn from the seed and the number of the trainee."""

    def __init__(self, folder: Path, seed: int, number: int, faults: list[str]) -> None:
        self.folder, self.name = folder, f"SOAK_SEED={seed} SOAK_FIRST={number}"
        draw = random.Random(self.name)
        self.draw = draw
        self.plan = []
        for _ in range(draw.choice([5, 10, 20, 100])):
            kind = draw.choice(KINDS)
            episode = {"kind": kind, "engine": draw.choice(STREAMED if kind == "stream" else ENGINES)}
            episode |= {"steps": draw.randint(5, 60), "pause": draw.choice([0, 0, 0.003, 0.03])}
            # MB that are left; with fewer, Python may wait for ever for a thread that cannot begin.
            episode["memory"] = draw.choice([*[0] * 9, 16, 32, 80])
            episode["faults"] = [
                self._fault(draw.choice(faults)) for _ in range(draw.choice([0, 1, 2, 2, 3]))
            ]
            self.plan.append(episode)
        self.plan[-1]["faults"] += [self._fault("finish")] * draw.randrange(2)
        self.is_ended, self.errors, self.number, self.heard = False, 0, 0, time.monotonic()
        self.damaged, self.begun, self.faults, self.due, self.sizes, self.log = set(), [], [], [], [], []

    def _fault(self, name: str) -> tuple[str, int, float, float]:
        """A fault that begins so many seconds after a step, and ends so many seconds later."""
        draw = self.draw
        return name, draw.randrange(10), draw.choice([0, 0.01, 0.1]), draw.choice([0.05, 0.5, 2])

    def note(self, text: str) -> None:
        self.log.append(f"{time.monotonic():.2f} s: {text}")

    def processes(self) -> list[int]:
        return sorted(live_processes(SESSION, self.pid))

    def go(self, deadline: float) -> str:
        """Run the trainee to its end or to the deadline, and return a summary. Raises SoakError."""
        self.deadline = deadline
        self.end, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            self.end.close()
            os.setsid()
            Trainee(self.folder, theirs).run(self.plan)
            sys.exit()
        theirs.close()
        try:
            status = self._listen()
            self._heal()
            if status and not self.is_ended:
                raise SoakError(f"the trainee ended with status {status}; its messages are above")
            if not wait_until(lambda: not self.processes(), LEFT_S):
                raise SoakError(f"the trainee has ended, its processes {self.processes()} have not")
            self._check_cache()
        except BaseException:
            for number in (signal.SIGCONT, signal.SIGUSR1, signal.SIGKILL):  # SIGUSR1 prints the stacks
                for pid in self.processes():
                    send(pid, number)
                time.sleep(0.5)
            raise
        finally:
            self.end.close()
        last = self.sizes[-1]
        first = self.sizes[min(2, len(self.sizes) - 1)]  # on a busy machine an episode may be the last one
        growth = ", ".join(f"{name} {first[name]} to {last[name]}" for name in last)
        return f"{self.number + 1} episodes, {self.errors} errors, status {status}; {growth}"

    def _listen(self) -> int:
        rest, pid = b"", 0
        while not pid:
            for due in [due for due in self.due if due[0] <= time.monotonic()]:
                self.due.remove(due)
                due[1]()
            part = b""
            with contextlib.suppress(ConnectionResetError):  # it was killed before it read an answer
                part = self.end.recv(1 << 16) if select.select([self.end], [], [], 0.01)[0] else b""
            if part:
                self.heard, (*lines, rest) = time.monotonic(), (rest + part).split(b"\n")
                for line in lines:
                    event, *values = json.loads(line)
                    getattr(self, f"_on_{event}")(*values)
            else:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if time.monotonic() - self.heard > SILENT_S:
                    raise SoakError(f"nothing has happened for {SILENT_S} s")
        return os.waitstatus_to_exitcode(status)

    def _on_begin(self, number: int) -> None:
        self.number, self.steps, self.repeated, self.begun, self.log = number, 0, 0, [], []
        self.episode = self.plan[number] if number >= 0 else {"kind": "", "faults": [], "memory": 0}
        self.kind, self.faults = self.episode["kind"], [*self.episode["faults"]]
        self.note(f"episode {number}: {self.episode}")

    def _on_step(self) -> None:
        self.steps, self.repeated = self.steps + 1, 0
        for planned in [fault for fault in self.faults if fault[1] < self.steps]:
            self.faults.remove(planned)
            name, _, after, lasts = planned
            fault, at = Fault(name, self), time.monotonic() + after
            self.begun.append(fault)
            self.due += [(at, fault.begin), (at + lasts, fault.end)]

    def _on_error(self, text: str, trace: str) -> None:
        self.note(text)
        self.errors, self.repeated = self.errors + 1, self.repeated + 1
        causes = [fault.error for fault in self.begun if fault.error] + [SHORT] * bool(self.episode["memory"])
        if not any(re.search(cause, text) for cause in causes):
            raise SoakError(f"an error that no fault explains\n{trace}")
        if self.repeated > 20 or self.draw.random() < 0.3:
            self._heal()
        time.sleep(0.02)
        self._answer()

    def _on_end(self, sizes: dict[str, int], files: list[str]) -> None:
        self._heal()
        self._check_cache()
        self.sizes.append(sizes)
        most = {**self.sizes[:3][-1], "children": 0}
        most["MB"] += SLACK_MB
        if self.number >= 0 and any(sizes[name] > most[name] for name in most):
            raise SoakError(f"the trainee has {sizes}, but had {most} at its beginning; its files: {files}")
        self._answer(ends=time.monotonic() > self.deadline)

    def _answer(self, ends: bool = False) -> None:
        with contextlib.suppress(OSError):  # it has just been killed
            self.end.shutdown(socket.SHUT_WR) if ends else self.end.sendall(b"\n")

    def _heal(self) -> None:
        """End all faults; those that have not begun never do."""
        self.due, self.faults = [], []
        for fault in self.begun:
            fault.end()

    def _check_cache(self) -> None:
        """Whatever is in the cache must be whole, also if its build was killed."""
        cache, expected = self.folder / "cache", shard_files(self.folder / "expected")
        if cache.exists() and any(expected[name] != content for name, content in shard_files(cache).items()):
            raise SoakError("the cache has a shard that is not that of an undisturbed build")


def mount(folder: Path) -> bool:
    """Mount a small disk, and a small /dev/shm, for this process and its children; False if not allowed."""
    libc, new_mounts, private, flags = ctypes.CDLL(None), 0x20000, 0x44000, 0
    if libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private, None):
        return False
    disks = ((folder, DISK_MB), (Path("/dev/shm"), SHM_MB))
    return not any(libc.mount(b"soak", bytes(path), b"tmpfs", flags, b"size=%dm" % mb) for path, mb in disks)


def main() -> None:
    defaults = {"SECONDS": 3600, "SEED": time.time_ns() % 10**6, "FIRST": 0}
    seconds, seed, number = (int(os.environ.get(f"SOAK_{name}", value)) for name, value in defaults.items())
    deadline, owner, folder = (
        time.monotonic() + seconds,
        os.getpid(),
        Path(tempfile.mkdtemp(prefix="tarpeg-soak-")),
    )
    os.environ["XDG_CACHE_HOME"] = str(folder / "home")
    faults = [*["kill", "stop", "damage", "damage"] * 2, "index", "fill"]
    try:
        if not mount(folder):
            faults.remove("fill")
            print("without a full disk and a small /dev/shm, as mounting them takes root")
        if not (pid := os.fork()):
            prepare(folder)
            sys.exit()
        if os.waitpid(pid, 0)[1]:
            sys.exit("the undisturbed run failed")
        while time.monotonic() < deadline:
            run = Run(folder, seed, number, faults)
            try:
                summary = run.go(deadline)
            except SoakError as error:
                sys.exit("\n".join([f"{run.name}: {error}", *run.log]))
            print(f"{deadline - time.monotonic():.0f} s left, {run.name}: {summary}", flush=True)
            number += 1
    finally:
        if os.getpid() == owner:
            ctypes.CDLL(None).umount2(bytes(folder), 2)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
