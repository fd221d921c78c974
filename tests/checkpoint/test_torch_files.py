"""Files that torch itself has written, read with and without its help."""

from __future__ import annotations

import builtins
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from eagle3convert.checkpoint.moves import first_difference
from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.checkpoint.stored import LocalFile, StoredTensor
from eagle3convert.checkpoint.torch_pickle import TORCH_DTYPES
from eagle3convert.checkpoint.writer import OutputTensor, write_weights
from eagle3convert.errors import CheckpointError

from .files import make_folder

torch = pytest.importorskip("torch")


def some_bytes(count: int) -> Any:
    return torch.frombuffer(bytearray(os.urandom(count)), dtype=torch.uint8)


def every_dtype() -> dict[str, Any]:
    tensors = {f"of.{name}": some_bytes(48).view(getattr(torch, name)) for name in TORCH_DTYPES if name != "bool"}
    tensors["of.bool"] = torch.tensor([True, False, True])
    return tensors


def save(folder: Path, value: Any, **options: Any) -> Path:
    make_folder(folder, {})
    torch.save(value, folder / "pytorch_model.bin", **options)
    return folder


def bits(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def check(tensors: dict[str, StoredTensor], wanted: dict[str, Any]) -> None:
    assert set(tensors) == set(wanted)
    for name, tensor in wanted.items():
        assert tensors[name].shape == tuple(tensor.shape)
        assert tensors[name].dtype == TORCH_DTYPES[str(tensor.dtype).removeprefix("torch.")]
        assert tensors[name].read() == bits(tensor), name


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def refuse(name: str, package: str | None = None) -> Any:
        if name == "torch":
            raise ImportError("no torch here")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)


@pytest.mark.usefixtures("no_torch")
class TestWithoutTorch:
    def test_every_dtype_bit_for_bit(self, tmp_path: Path) -> None:
        wanted = every_dtype()
        with open_checkpoint(save(tmp_path, wanted)) as checkpoint:
            check(checkpoint.tensors, wanted)
            assert all(isinstance(tensor.file, LocalFile) for tensor in checkpoint.tensors.values())

    def test_a_state_dict_of_a_module_with_parameters_and_tied_weights(self, tmp_path: Path) -> None:
        module = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 4), "b": torch.nn.Linear(3, 4)}).to(torch.bfloat16)
        module["b"].weight = module["a"].weight
        wanted = {**dict(module.named_parameters(remove_duplicate=False)), "view": torch.arange(10)[4:7]}
        with open_checkpoint(save(tmp_path / "parameters", wanted)) as checkpoint:
            check(checkpoint.tensors, wanted)
        with open_checkpoint(save(tmp_path / "state", {"state_dict": module.state_dict(), "epoch": 1})) as checkpoint:
            check(checkpoint.tensors, module.state_dict())
            assert "under 'state_dict'" in checkpoint.notes[0]

    def test_scalars_and_empty_tensors(self, tmp_path: Path) -> None:
        wanted = {
            "s": torch.tensor(3.5),
            "e": torch.zeros(0, 4, dtype=torch.bfloat16),
            "t": torch.zeros(1, 5)[:, 2:3],
        }
        with open_checkpoint(save(tmp_path, wanted)) as checkpoint:
            check(checkpoint.tensors, wanted)

    def test_a_tensor_that_is_not_contiguous_asks_for_torch(self, tmp_path: Path) -> None:
        with pytest.raises(
            CheckpointError, match=r"tensor 'w' is not contiguous.*pip install 'eagle3convert\[torch\]'"
        ):
            open_checkpoint(save(tmp_path, {"w": torch.zeros(3, 4).t()}))

    def test_what_was_read_is_written_as_safetensors(self, tmp_path: Path) -> None:
        loader = pytest.importorskip("safetensors.torch")
        wanted = {name: tensor for name, tensor in every_dtype().items() if "fnuz" not in name}
        out = make_folder(tmp_path / "out", {})
        with open_checkpoint(save(tmp_path / "in", wanted)) as source:
            write_weights(out, [OutputTensor(t.name, t.dtype, t.shape, t) for t in source.tensors.values()], {})
            with open_checkpoint(out) as written:
                check(written.tensors, wanted)
                for name, tensor in source.tensors.items():
                    assert first_difference(tensor, written.tensors[name]) is None
        loaded = loader.load_file(out / "model.safetensors")
        assert {name: bits(tensor) for name, tensor in loaded.items()} == {n: bits(t) for n, t in wanted.items()}


class TestThroughTorch:
    def test_tensors_that_are_not_contiguous(self, tmp_path: Path) -> None:
        wanted = {
            "w": torch.randn(3, 4).t(),
            "e": torch.randn(3, 1).expand(3, 5),
            "b": torch.randn(4).bfloat16(),
        }
        with open_checkpoint(save(tmp_path, {"model": wanted})) as checkpoint:
            check(checkpoint.tensors, wanted)
            assert "it was read through torch" in checkpoint.notes[0]
            assert "under 'model'" in checkpoint.notes[1]
            assert first_difference(checkpoint.tensors["w"], checkpoint.tensors["w"]) is None

    def test_the_format_before_torch_1_6(self, tmp_path: Path) -> None:
        # torch itself reads only those dtypes back from this format that existed then.
        wanted = {
            n: t for n, t in every_dtype().items() if "8_" not in n and n[3:] not in {"uint16", "uint32", "uint64"}
        }
        with open_checkpoint(save(tmp_path, wanted, _use_new_zipfile_serialization=False)) as checkpoint:
            check(checkpoint.tensors, wanted)

    def test_a_sparse_tensor_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(
            CheckpointError, match=r"pytorch_model\.bin: tensor 's' is torch\.float32, torch\.sparse_coo"
        ):
            open_checkpoint(save(tmp_path, {"s": torch.eye(3).to_sparse()}))

    def test_a_torch_that_can_be_made_to_run_code_is_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = save(tmp_path, {"w": torch.zeros(3, 4).t()})
        monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
        with pytest.raises(CheckpointError, match=r"torch 2\.5\.1\+cpu can be made to run code"):
            open_checkpoint(folder)


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


class HostileInTorchsName:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.hub.load, (str(self.mark), "x")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("with_torch", [False, True])
def test_a_hostile_pickle_is_refused_and_nothing_runs(
    tmp_path: Path, request: pytest.FixtureRequest, with_torch: bool, legacy: bool
) -> None:
    if not with_torch:
        request.getfixturevalue("no_torch")
    mark = tmp_path / "ran"
    folder = save(tmp_path / "in", {"w": torch.zeros(2), "x": Hostile(mark)}, _use_new_zipfile_serialization=not legacy)
    wanted = "eagle3convert" if legacy and not with_torch else r"posix\.system"
    with pytest.raises(CheckpointError, match=rf"pytorch_model\.bin: .*{wanted}"):
        open_checkpoint(folder)
    assert not mark.exists()


def test_a_hostile_global_of_torch_is_refused_by_torch_too(tmp_path: Path) -> None:
    folder = save(tmp_path / "in", {"x": HostileInTorchsName(tmp_path)})
    with pytest.raises(CheckpointError, match=r"asks for torch\.hub\.load, and torch does not read it either"):
        open_checkpoint(folder)


def test_torch_is_not_imported_where_it_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path, every_dtype())
    real = builtins.__import__

    def watch(name: str, *arguments: Any, **options: Any) -> Any:
        assert not name.startswith("torch")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", watch)
    with open_checkpoint(folder) as checkpoint:
        assert len(checkpoint.tensors) == len(TORCH_DTYPES)
