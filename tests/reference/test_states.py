"""Captured states in every layout that is read, and what is said of files that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from eagle3convert.errors import CheckpointError, UsageError  # noqa: E402
from eagle3convert.reference.bench import Judge, groups, limited  # noqa: E402
from eagle3convert.reference.cache import Packed  # noqa: E402
from eagle3convert.reference.states import CapturedStates, read_states  # noqa: E402

from .planted import CAPTURED  # noqa: E402

T, H = 6, 4


def plain(**more: Tensor) -> dict[str, Tensor]:
    states = {f"hidden_states.{k}": torch.randn(T, H) for k in (0, 2, 5)}
    return {"token_ids": torch.arange(T), **states, **more}


def saved(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, path)
    return path


def test_the_capture_that_ships_with_the_package() -> None:
    states = read_states([CAPTURED], None, 3)
    assert states.numbered
    assert list(states.states) == list(range(9))
    assert states.packed.starts == tuple(range(0, 240, 16))
    assert states.argmax is not None
    assert states.length == 240


def test_plain_layout(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.safetensors", plain(sequence_starts=torch.tensor([0, 4])))
    states = read_states([file], (9, 9, 9), 3)
    assert list(states.states) == [0, 2, 5]
    assert states.packed == Packed(T, (0, 4))
    assert states.argmax is None


def test_speculators_layout(tmp_path: Path) -> None:
    stack = torch.randn(T, 4, H).bfloat16()
    file = saved(tmp_path / "hs_0.safetensors", {"token_ids": torch.arange(T), "hidden_states": stack})
    states = read_states([file], (2, 4, 5), 3)
    assert not states.numbered
    assert torch.equal(states.states[4], stack[:, 1])
    assert states.output is not None
    assert torch.equal(states.output, stack[:, 3])
    assert not states.output_normed
    assert list(read_states([file], None, 3).states) == [0, 1, 2]
    with pytest.raises(CheckpointError, match=r"hs_0\.safetensors.*3 aux states.*takes 4"):
        read_states([file], None, 4)


def test_specforge_layout(tmp_path: Path) -> None:
    aux = torch.randn(1, T, 3 * H)
    tensors = {
        "input_ids": torch.arange(T),
        "loss_mask": torch.tensor([0, 0, 1, 1, 1, 1]),
        "hidden_state": torch.randn(1, T, H),
        "aux_hidden_state": aux,
    }
    file = tmp_path / "data_0.ckpt"
    torch.save(tensors, file)
    states = read_states([file], (2, 4, 5), 3)
    assert torch.equal(states.states[5], aux[0, :, 2 * H :])
    assert states.output_normed
    assert states.counted is not None
    assert states.counted.tolist() == [False, False, True, True, True, True]


def test_several_files_are_joined(tmp_path: Path) -> None:
    one = saved(tmp_path / "a.safetensors", plain(sequence_starts=torch.tensor([0, 4])))
    two = saved(tmp_path / "b.safetensors", plain())
    states = read_states([one, two], None, 3)
    assert states.length == 2 * T
    assert states.packed.starts == (0, 4, 6)
    other = plain()
    del other["hidden_states.2"]
    three = saved(tmp_path / "c.safetensors", other)
    with pytest.raises(CheckpointError, match=r"c\.safetensors.*\[0, 5\].*\[0, 2, 5\]"):
        read_states([one, three], None, 3)


class Trap:
    """What a pickle must never be allowed to run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("/dev/null",))


BAD: list[tuple[str, dict[str, Tensor], str]] = [
    ("no ids", {"hidden_states.0": torch.randn(T, H)}, "tensor 'token_ids' is missing"),
    ("float ids", plain() | {"token_ids": torch.randn(T)}, "integers"),
    ("negative", plain() | {"token_ids": torch.arange(T) - 1}, "not negative"),
    ("length", plain() | {"hidden_states.2": torch.randn(T + 1, H)}, r"hidden_states\.2.*T = 6"),
    ("integers", plain() | {"hidden_states.2": torch.zeros(T, H, dtype=torch.int64)}, "floats"),
    ("starts", plain(sequence_starts=torch.tensor([1, 4])), "must begin with 0"),
    ("starts past the end", plain(sequence_starts=torch.tensor([0, 6])), "ascend below T = 6"),
    ("argmax", plain(verifier_argmax=torch.arange(T - 1)), "verifier_argmax' has 5 entries"),
    ("nothing", {"weights": torch.randn(2)}, "none of"),
]


@pytest.mark.parametrize(("tensors", "said"), [(t, s) for _, t, s in BAD], ids=[name for name, _, _ in BAD])
def test_files_that_cannot_be_used_are_named(tensors: dict[str, Tensor], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"bad\.safetensors.*" + said):
        read_states([saved(tmp_path / "bad.safetensors", tensors)], None, 3)


def test_torch_files_run_nothing(tmp_path: Path) -> None:
    file = tmp_path / "trap.ckpt"
    torch.save({"input_ids": Trap()}, file)
    with pytest.raises(CheckpointError, match=r"trap\.ckpt.*Nothing in it was run"):
        read_states([file], None, 3)
    torch.save([1, 2], tmp_path / "list.ckpt")
    with pytest.raises(CheckpointError, match="holds a list"):
        read_states([tmp_path / "list.ckpt"], None, 3)
    with pytest.raises(CheckpointError, match="does not exist"):
        read_states([tmp_path / "none.ckpt"], None, 3)
    with pytest.raises(CheckpointError, match="does not exist"):
        read_states([tmp_path / "none.safetensors"], None, 3)
    with pytest.raises(UsageError, match="--states"):
        read_states([], None, 3)


# --- which positions are asked, and what is right there ---------------------------------------------------------------


def captured(tokens: list[int], argmax: list[int] | None = None, **more: Any) -> CapturedStates:
    ids = torch.tensor(tokens)
    wanted = torch.tensor(argmax) if argmax is not None else None
    return CapturedStates(ids, more.pop("packed", Packed(len(ids))), {}, True, wanted, **more)


def test_next_tokens_are_right_where_nothing_else_is_known() -> None:
    states = captured([5, 6, 7, 8, 9], packed=Packed(5, (0, 4)))
    judge = Judge(states, None)
    wanted, counts = judge.expected(0)
    assert counts.tolist() == [True, True, False, False, False]  # from row t the token t + 2 of the same sequence
    assert wanted[counts].tolist() == [7, 8]
    wanted, counts = judge.expected(1)
    assert wanted[counts].tolist() == [8]


def test_a_drafter_is_asked_only_upon_the_verifiers_own_choices() -> None:
    tokens, argmax = [5, 6, 7, 8, 9], [6, 0, 8, 9, 4]  # the token 7 was not the verifier's choice
    wanted, counts = Judge(captured(tokens, argmax), torch.tensor(argmax)).expected(0)
    assert counts.tolist() == [True, False, True, True, False]
    assert wanted[counts].tolist() == [0, 9, 4]
    wanted, counts = Judge(captured(tokens, argmax), torch.tensor(argmax)).expected(1)
    assert counts.tolist() == [False, False, True, False, False]
    assert wanted[counts].tolist() == [4]


def test_a_loss_mask_says_which_tokens_are_asked_for() -> None:
    mask = torch.tensor([False, False, False, True, True])
    wanted, counts = Judge(captured([5, 6, 7, 8, 9], counted=mask), None).expected(0)
    assert wanted[counts].tolist() == [8, 9]


def test_rows_are_run_in_groups_of_whole_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3convert.reference.bench.GROUP", 7)
    found = groups(Packed(14, (0, 3, 6, 13)), 14)
    assert [(a, b, p.starts) for a, b, p in found] == [(0, 6, (0, 3)), (6, 13, (0,)), (13, 14, (0,))]
    assert [(a, b) for a, b, _ in groups(Packed(14, (0, 3, 6, 13)), 8)] == [(0, 6), (6, 8)]


def test_a_long_capture_is_cut() -> None:
    states = captured([5, 6, 7, 8, 9], [6, 7, 8, 9, 1], packed=Packed(5, (0, 2, 4)))
    cut = limited(states, 3)
    assert cut.packed == Packed(3, (0, 2))
    assert cut.argmax is not None
    assert cut.argmax.tolist() == [6, 7, 8]
    assert limited(states, 5) is states
