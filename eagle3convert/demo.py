"""The demo: the whole way on the small drafter that ships with the package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from eagle3convert.checkpoint.output import OutputFolder
from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.comparison import compare
from eagle3convert.conversion import convert, verify
from eagle3convert.errors import OutputError, VerificationFailed
from eagle3convert.inspection import inspect_drafter

DRAFTER = Path(__file__).resolve().parent / "demo_drafter"
FILES = ("config.json", "model.safetensors")
ENGINES = ("sglang", "vllm")


def run_demo(directory: Path, say: Callable[[str], None]) -> None:
    """Copy the drafter out, inspect it, convert it to each engine and back, verify and compare; `say` each step."""
    if directory.exists() and any(directory.iterdir()):
        raise OutputError(f"{directory}: this folder is not empty. Name another one for the demo.")
    source, verifier = directory / "speculators", directory / "verifier"
    with OutputFolder(source) as tmp:
        for name in FILES:
            shutil.copyfile(DRAFTER / name, tmp / name)
    verifier.mkdir()
    shutil.copyfile(DRAFTER / "verifier" / "config.json", verifier / "config.json")
    say(f"$ eagle3convert inspect {source} --verifier {verifier}")
    for line in inspect_drafter(source, verifier=verifier).lines():
        say(line)
    for engine in ENGINES:
        out, back = directory / engine, directory / f"back-from-{engine}"
        say(f"\n$ eagle3convert speculators {engine} {source} {out} --verifier {verifier}")
        result = convert(source, out, "speculators", engine, verifier=verifier)
        _tell(result.path, result.verification.checks, say)
        states, ids = result.plan.destination.states or (), result.plan.destination.aux_ids or ()
        say(f"  trained on hidden_states {list(states)}, written as {list(ids)} for {engine}")
        say(f"  launch: {result.plan.launch_command(str(out))}")
        say(f"$ eagle3convert {engine} speculators {out} {back}")
        convert(out, back, engine, "speculators")
        if not verify(source, out) or compare(source, back) or not _same_files(source, back):
            raise VerificationFailed(f"{back}: is not the drafter that {source} holds.")
        say(f"  {back}: every tensor bit for bit and config.json equal to {source}")
    _replay(source, verifier, directory / "broken", say)
    say(f"\nverified: {' and '.join(ENGINES)} from one drafter, each converted back to the same bytes.")


def _replay(source: Path, verifier: Path, broken: Path, say: Callable[[str], None]) -> None:
    """Replay the drafter on the captured states, sound and with its aux layers declared wrong; needs torch."""
    if find_spec("torch") is None:
        say("\n(With torch, `pip install 'eagle3convert[torch]'`, the demo also replays it on captured hidden states.)")
        return
    from eagle3convert.reference.replay import replay

    states = DRAFTER / "captured_states.safetensors"
    shutil.copytree(source, broken)
    config = json.loads((broken / "config.json").read_text(encoding="utf-8"))
    config["eagle_aux_hidden_state_layer_ids"] = [1, 5, 7]
    (broken / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    for folder in (source, broken):
        say(f"\n$ eagle3convert replay {folder} --states captured_states.safetensors --verifier {verifier}")
        report = replay(folder, [states], verifier=verifier)
        for engine in report.engines:
            if engine.score is not None:
                share = f"{engine.score.shares[0]:.1%} of the next tokens at draft step 0"
                say(f"  {engine.format_name}, {'converted' if engine.converted else 'as it stands'}: {share}")
        say(f"  {report.sentence}")


def _tell(path: Path, checks: dict[str, str], say: Callable[[str], None]) -> None:
    for check, outcome in checks.items():
        say(f"  {check}: {outcome}")
    say(f"  {path}: verified")


def _same_files(a: Path, b: Path) -> bool:
    """Whether two folders hold the same config and the same weights file, byte for byte."""
    configs = [json.loads((folder / "config.json").read_text(encoding="utf-8")) for folder in (a, b)]
    return bool(configs[0] == configs[1]) and _weights(a) == _weights(b)


def _weights(folder: Path) -> dict[str, bytes]:
    with open_checkpoint(folder) as checkpoint:
        return {name: tensor.read() for name, tensor in checkpoint.tensors.items()}
