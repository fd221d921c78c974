"""A file on the Hub as a run of bytes, of which only those that are asked for are fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eagle3convert.checkpoint.stored import ended_early
from eagle3convert.errors import CheckpointError
from eagle3convert.hub.client import headers, raise_for_status
from eagle3convert.hub.errors import HubError, hub_errors
from eagle3convert.hub.retrying import retried

FIRST_BYTES: Final = 16 << 10
"""Bytes that a first read fetches: a drafter's whole header in one request."""

KEPT_BYTES: Final = 8 << 20
"""Bytes of a file that are kept, so that asking again costs nothing."""


@dataclass
class Traffic:
    """What was fetched from the Hub: requests for bytes of files, and those bytes."""

    requests: int = 0
    bytes: int = 0


class RemoteFile:
    """A file of ``size`` bytes at ``address``; reads are range requests, counted in ``traffic``."""

    remote: Final = True

    def __init__(self, name: str, repo: str, address: str, size: int, traffic: Traffic) -> None:
        self.name = name
        self.size = size
        self._repo = repo
        self._address = address
        self._traffic = traffic
        self._kept: list[tuple[int, bytes]] = []

    def __repr__(self) -> str:
        return f"RemoteFile({self.name!r}, {self.size} bytes)"

    def fileno(self) -> int | None:
        return None

    def read(self, start: int, length: int) -> bytes:
        if start + length > self.size:
            raise CheckpointError(ended_early(self.name, self.size, start + length - self.size))
        if length == 0:
            return b""
        for begin, data in self._kept:
            if begin <= start and start + length <= begin + len(data):
                return data[start - begin : start - begin + length]
        wanted = max(length, min(FIRST_BYTES, self.size)) if start == 0 else length
        with hub_errors(self._repo):
            data = retried(lambda: self._fetch(start, wanted))
        if sum(len(kept) for _, kept in self._kept) + len(data) <= KEPT_BYTES:
            self._kept.append((start, data))
        return data[:length]

    def readinto(self, start: int, target: memoryview) -> int:
        target[:] = self.read(start, len(target))
        return len(target)

    def close(self) -> None:
        self._kept.clear()

    def _fetch(self, start: int, length: int) -> bytes:
        from huggingface_hub import get_session

        asked = headers() | {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        self._traffic.requests += 1
        with get_session().stream("GET", self._address, headers=asked) as response:
            if response.status_code >= 400:
                response.read()
            raise_for_status(response)
            if response.status_code != 206 and length != self.size:
                raise HubError(
                    f"{self.name}: the server sends the whole file where a part of it was asked for. Download the "
                    f"drafter first: `hf download {self._repo}`."
                )
            data: bytes = response.read()
        self._traffic.bytes += len(data)
        if len(data) != length:
            raise CheckpointError(
                f"{self.name}: {length} bytes from byte {start} were asked for and {len(data)} came. Run again."
            )
        return data
