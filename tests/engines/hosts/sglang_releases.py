"""What differs between SGLang's releases, 0.4.9 to 0.5.23, before a model class can be built: how one rank is set up.

SGLang runs here with the transformers that its release pins, and with a newer torch and Triton than it knew.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version
from unittest.mock import MagicMock

import torch
from packaging.version import Version

RELEASE = Version(version("sglang"))
GONE: dict[str, dict[str, typing.Any]] = {
    "triton.runtime.cache": {"default_cache_dir": None, "default_dump_dir": None, "default_override_dir": None},
    "torch._C._cpu": {"_is_amx_tile_supported": lambda: False},
}
"""Names that SGLang 0.4.9 takes from a package whose newer release has them no more (srt/utils.py:86,219): Triton's
folders for compiled kernels, and the question whether the CPU has Intel's AMX, for which sgl_kernel has kernels.  Newer
releases of SGLang do without."""


def give_back_what_is_gone() -> None:
    """Let an old SGLang be imported beside newer packages."""
    if Version("0.5.22") <= RELEASE:
        return
    for package, names in GONE.items():
        module = importlib.import_module(package)
        for name, value in names.items():
            if not hasattr(module, name):
                setattr(module, name, value)
    import transformers.processing_utils  # it makes the package `transformers` anew, so first

    try:
        transformers.AutoImageProcessor.register  # noqa: B018
    except ImportError:
        # transformers 5.6-5.12 refuses every use of it without torchvision, and SGLang registers the processors of its
        # models' images when it is imported (0.5.11 srt/configs/utils.py:18).  A drafter sees no images.
        transformers.AutoImageProcessor = MagicMock(name="AutoImageProcessor")


def arguments(ranks: int = 1) -> typing.Any:
    """A server on the CPU, with SGLang's own defaults."""
    from sglang.srt.server_args import ServerArgs

    return ServerArgs(model_path="none", device="cpu", attention_backend="torch_native", tp_size=ranks)


def process_groups(rank: int = 0, ranks: int = 1, meeting: str = "") -> None:
    """torch.distributed and SGLang's groups of ranks, who meet at a file: the same two calls in every release."""
    from sglang.srt.distributed import parallel_state

    place = f"file://{meeting or tempfile.mktemp(prefix='sglang-')}"
    parallel_state.init_distributed_environment(
        world_size=ranks, rank=rank, local_rank=rank, backend="gloo", distributed_init_method=place
    )
    parallel_state.initialize_model_parallel()


def by_dictionary() -> None:
    """0.4.9: the layers read a dictionary of some server arguments, which holds their defaults from the import on."""
    own_layers()
    from sglang.srt.layers import dp_attention

    process_groups()
    dp_attention.initialize_dp_attention(False, 0, 1, 1, None, 1)


def own_layers() -> None:
    """0.4.9 takes norm, activation and rotation from the vllm package on a CPU without AMX; on a GPU it has its own.

    So its modules are imported as on a CPU with AMX, and told afterwards that there is none: their own classes then
    compute in plain torch (srt/layers/layernorm.py:258, activation.py:212, custom_op.py:98).  The rotation asks again
    when it is built (rotary_embedding.py:105), and is then run by custom_op.py as well.
    """
    from sglang.srt import utils

    utils.cpu_has_amx_support = lambda: True
    for module in ("layers.quantization", "models.llama_eagle3"):  # the other way round the first imports itself
        importlib.import_module(f"sglang.srt.{module}")
    utils.cpu_has_amx_support = lambda: False
    for name, loaded in list(sys.modules.items()):
        if name.startswith("sglang.") and getattr(loaded, "_is_cpu_amx_available", False):
            setattr(loaded, "_is_cpu_amx_available", name.endswith(".rotary_embedding"))  # noqa: B010


def by_server_arguments() -> None:
    """0.5.9: the layers read the server's arguments."""
    from sglang.srt.server_args import set_global_server_args_for_scheduler

    set_global_server_args_for_scheduler(arguments())
    process_groups()
    from sglang.srt.layers import dp_attention

    # Some verifiers' layers ask for their place in it, a drafter's do not; the sizes are for a buffer that no one uses.
    sizes = types.SimpleNamespace(hidden_size=1, dtype=torch.float32, hf_config=None)
    dp_attention.initialize_dp_attention(arguments(), sizes)


def by_context() -> None:
    """0.5.16: the arguments lie in a context of the process."""
    from sglang.srt.runtime_context import reset_context

    reset_context()
    by_server_arguments()


def by_rank(rank: int = 0, ranks: int = 1, meeting: str = "") -> None:
    """0.5.21: which says also what rank the process is."""
    from sglang.srt.runtime_context import SpawnRanks, publish, reset_context

    reset_context()
    publish(arguments(ranks), role="test", ranks=SpawnRanks(world_rank=rank))
    process_groups(rank, ranks, meeting)


WAYS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("0.5.21", by_rank), ("0.5.16", by_context), ("0.5.9", by_server_arguments), ("0.4.9", by_dictionary),
)  # fmt: skip
"""The first release of each that was run here."""


def bring_up() -> None:
    """Set one rank up in the way of this release."""
    next(way for since, way in WAYS if Version(since) <= RELEASE)()


def backend(batch: typing.Any, of_attention: typing.Any) -> AbstractContextManager[None]:
    """The attention backend of a forward pass; until 0.5.12 the batch carried what it holds."""
    if Version("0.5.16") > RELEASE:
        for name, value in vars(of_attention).items():
            setattr(batch, name, value)
        return contextlib.nullcontext()
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    return typing.cast(AbstractContextManager[None], forward_context(ForwardContext(of_attention)))


def draft_window(size: int | None) -> AbstractContextManager[None]:
    """The server flag --speculative-draft-window-size; SGLang has none before 0.5.12."""
    if Version("0.5.12") > RELEASE:
        return contextlib.nullcontext()
    if Version("0.5.17") > RELEASE:  # the draft class reads the arguments themselves
        return _argument("speculative_draft_window_size", size)
    from sglang.srt.runtime_context import get_spec

    return typing.cast(AbstractContextManager[None], get_spec().override(speculative_draft_window_size=size))


@contextlib.contextmanager
def _argument(name: str, value: typing.Any) -> Iterator[None]:
    from sglang.srt.server_args import get_global_server_args

    live = get_global_server_args()
    before = getattr(live, name)
    setattr(live, name, value)
    try:
        yield
    finally:
        setattr(live, name, before)
