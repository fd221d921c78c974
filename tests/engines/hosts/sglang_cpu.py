"""SGLang on a machine without a GPU: its own model classes, with stand-ins for what is missing.

Real: reading of the config, the model classes, load_weights, and the forward pass of every module but one.  Replaced:
packages of the closed list below, which bring kernels or services and no part of a drafter's arithmetic, and the
attention kernel (`attention.py`); for older releases also what `sglang_releases.py` says.  Import this module before
anything of SGLang.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
import types
import typing
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from unittest import mock
from unittest.mock import MagicMock

import sglang_releases

if typing.TYPE_CHECKING:
    from attention import RowAttention

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

ABSENT = frozenset({
    "IPython", "torchvision", "sgl_kernel", "cuda", "pynvml", "sentencepiece", "compressed_tensors", "gguf", "xgrammar",
})  # fmt: skip
"""Packages that SGLang imports at start and that have no build for this machine, or none that is needed."""
ONLY_NAMES = frozenset({"xgrammar"})
"""Those of them whose names stand in annotations that pydantic reads: typing.Any is one that it takes."""
SERVICES = ("sglang.srt.entrypoints.openai.protocol",)
"""SGLang's own HTTP protocol: it needs the openai package at import, and no model needs it."""


_really_probe = importlib.util.find_spec


class StandIn(ModuleType):
    """A package that is not there: it has every name, and no name means anything."""

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__.split(".")[0] in ONLY_NAMES or self.__name__ in SERVICES:
            return typing.Any
        return MagicMock(name=f"{self.__name__}.{name}")


class StandIns(MetaPathFinder, Loader):
    """Last in sys.meta_path: gives a stand-in where SGLang itself imports an absent package.

    A probe (importlib.util.find_spec) finds nothing, and neither does another package's import: transformers must not
    believe that torchvision is there.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] not in ABSENT or not _imported_by_sglang():
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _imported_by_sglang() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and not name.startswith(("importlib", "_frozen_importlib")):
            return name.split(".")[0] == "sglang"
        frame = typing.cast(types.FrameType, frame.f_back)
    return False


def _probe(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
    return None if name.split(".")[0] in ABSENT else _really_probe(name, package)


def install_stand_ins() -> None:
    sys.meta_path.append(StandIns())
    mock.patch.object(importlib.util, "find_spec", _probe).start()
    sglang_releases.give_back_what_is_gone()
    for name in SERVICES:
        module = StandIn(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module


def bring_up() -> None:
    """One rank on the CPU, as SGLang's own scheduler sets it up."""
    sglang_releases.bring_up()


def draft_window(size: int | None) -> AbstractContextManager[None]:
    """The server flag --speculative-draft-window-size; a draft class reads it when it is built."""
    return sglang_releases.draft_window(size)


def judge(
    job: dict[str, typing.Any],
    find: Callable[[RowAttention], dict[str, typing.Any]],
    up: Callable[[], None] = bring_up,
    tells: bool = True,
) -> None:
    """Bring SGLang up, let `find` work with it, and write what it found and the release to the job's results."""
    import torch
    from attention import replace_attention

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    up()
    found = find(replace_attention())
    if tells:
        told = {"release": str(sglang_releases.RELEASE), **found}
        Path(job["results"]).write_text(json.dumps(told), encoding="utf-8")


def serve(find: Callable[[dict[str, typing.Any], RowAttention], dict[str, typing.Any]]) -> None:
    """The whole of a host with one rank: read the job from standard input, judge it and leave."""
    job = json.load(sys.stdin)
    judge(job, lambda attention: find(job, attention))
    leave()


def leave() -> None:
    """End the process, whose threads of gloo would keep it."""
    sys.stdout.flush()
    os._exit(0)


install_stand_ins()
