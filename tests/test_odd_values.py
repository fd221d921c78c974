"""Whatever stands in a config, a receipt or an assumption: eagle3convert goes on or says why not, and never breaks."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import eagle3convert
from eagle3convert import Eagle3ConvertError, UsageError
from eagle3convert.assumptions import KINDS, check_assumptions
from eagle3convert.hub.card import Subject, make_card
from eagle3convert.hub.folder import read_converted

from .drafters import FORMATS, make_drafter, read_config, read_receipt, write_verifier

ODD = (None, True, -1, 1.5, "x", [1], ["x"], {"x": 1}, 10**30)
Place = tuple[str | int, ...]


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in a JSON value, at any depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*at, key)
        yield from places(below, (*at, key))


def with_odd_values(whole: dict[str, Any]) -> Iterator[str]:
    """The value as JSON, each time with one place changed."""
    for place in places(whole):
        for odd in ODD:
            changed = copy.deepcopy(whole)
            inner: Any = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = odd
            yield json.dumps(changed)


def goes_on_or_says_why(*actions: Callable[[], object]) -> None:
    for action in actions:
        with suppress(Eagle3ConvertError):
            action()


@pytest.mark.parametrize("name", FORMATS)
def test_any_value_anywhere_in_a_config(name: str, tmp_path: Path) -> None:
    folder, verifier = make_drafter(name).write(tmp_path / "drafter"), write_verifier(tmp_path / "verifier")
    to = "vllm" if name == "sglang" else "sglang"
    for config in with_odd_values(read_config(folder)):
        (folder / "config.json").write_text(config, encoding="utf-8")
        goes_on_or_says_why(
            lambda: eagle3convert.plan(folder, name, to).as_json(),
            lambda: eagle3convert.inspect(folder).lines(),
            lambda: eagle3convert.diagnose(folder, to, values=False, verifier=verifier).verdict(),
        )


def test_any_value_anywhere_in_a_verifiers_config(tmp_path: Path) -> None:
    folder, verifier = make_drafter("speculators").write(tmp_path / "drafter"), write_verifier(tmp_path / "verifier")
    known = read_config(verifier)
    for config in with_odd_values(known | {"text_config": known}):
        (verifier / "config.json").write_text(config, encoding="utf-8")
        goes_on_or_says_why(lambda: eagle3convert.plan(folder, "speculators", "sglang", verifier=verifier).as_json())


def test_any_value_anywhere_in_a_receipt(tmp_path: Path) -> None:
    folder, verifier = make_drafter("speculators").write(tmp_path / "drafter"), write_verifier(tmp_path / "verifier")
    out = eagle3convert.convert(folder, tmp_path / "out", "speculators", "sglang", verifier=verifier).path
    for receipt in with_odd_values(read_receipt(out)):
        (out / "eagle3convert.json").write_text(receipt, encoding="utf-8")
        goes_on_or_says_why(
            lambda: eagle3convert.verify(folder, out),
            lambda: eagle3convert.plan(out, "sglang", "speculators").as_json(),
            lambda: make_card(Subject(out, read_converted(out).receipt, "org/name"), None, None),
        )


@pytest.mark.parametrize("key", KINDS)
def test_an_assumption_is_of_its_kind_or_refused_by_its_name(key: str, tmp_path: Path) -> None:
    folder = make_drafter("speculators").write(tmp_path / "drafter")
    for odd in ODD:
        if KINDS[key].fits(odd):
            goes_on_or_says_why(lambda: eagle3convert.plan(folder, "auto", "vllm", assume={key: odd}).as_json())  # noqa: B023
        else:
            with pytest.raises(UsageError, match=f"--assume {key}=.*: {key} is .*, not "):
                eagle3convert.plan(folder, "auto", "vllm", assume={key: odd})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("aux_layers", ["2", "4", "5"]), ("aux_layers", [1.5, 4, 5]), ("aux_layers", [True, 4, 5]),
        ("aux_layers", "245"), ("aux_layers", 5), ("d2t_encoding", "relative"), ("verifier", ""), ("dtype", "int8"),
    ],
)  # fmt: skip
def test_an_option_that_means_nothing_is_refused_by_its_name(field: str, value: Any, tmp_path: Path) -> None:
    folder = make_drafter("speculators").write(tmp_path / "drafter")
    with pytest.raises(UsageError, match=f"{field} "):
        eagle3convert.plan(folder, "auto", "vllm", **{field: value})


def test_an_unknown_assumption_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--assume colour=blue: say KEY=VALUE with one of these keys: .*head_dim"):
        check_assumptions({"colour": "blue"})
