"""Opens shards that are streams, by webdataset or fsspec, and takes their members."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from .expansion import is_url
from .tarmembers import streamed_members


class Opener:
    """Opens shards one after another and knows which it is at, for the message when it fails."""

    url = ""
    stream: Any = None

    def members(self, urls: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield members as webdataset's expander does, which takes a damaged header for a shard's end."""
        for url, stream in self._opened(urls):
            for name, content in streamed_members(stream, url):
                yield {"fname": name, "data": content, "__url__": url}
            yield {}  # no sample goes on in the next shard

    def _opened(self, urls: Sequence[str]) -> Iterator[tuple[str, BinaryIO]]:
        from webdataset.gopen import Pipe

        for self.url in urls:
            self.stream = stream = _open(self.url)
            try:
                yield self.url, stream
                # A command that failed half-way says so at its end only; and one that cannot write its last
                # bytes (tars are padded) would fail for that.
                while stream.read(1 << 20):
                    pass
            except BaseException:
                # Given up: nobody wants to wait for a server that stalls, nor to know how its command ends.
                if isinstance(stream, Pipe):
                    stream.proc.kill()
                    stream.ignore_errors = True
                raise
            finally:
                stream.close()

    def status(self) -> str:
        """Say how the command ended that the shard comes from: its output tells less than that."""
        process = getattr(self.stream, "proc", None)
        if process is None:
            return ""
        process.stdout.close()
        try:
            status = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return ""
        return f" (its command ended with status {status})" if status > 0 else ""


def _open(url: str) -> BinaryIO:
    """Open a URL by webdataset's commands (curl, gsutil, pipe:) or else by fsspec; a path as a file."""
    from webdataset.gopen import gopen, gopen_schemes

    scheme = url.partition(":")[0].lower() if is_url(url) else ""
    is_known = scheme in ("", "file") or scheme in gopen_schemes
    if is_known and not (scheme in ("http", "https") and shutil.which("curl") is None):
        stream: BinaryIO = gopen(url)
        return stream
    import fsspec

    opened: BinaryIO = fsspec.open(url, "rb").open()
    return opened
