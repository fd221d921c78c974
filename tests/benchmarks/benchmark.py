"""What a conversion costs, as ratios of one run: against cp, against load_file + save_file, against bare Python.

    python tests/benchmarks/benchmark.py [--scratch DIR] [--rounds 5] [--only NAME,…] [--json FILE]

Every command runs once per round, in turn, after one warm-up; a ratio is taken within its round, and the medians of the
rounds are printed with the bound that the project holds itself to.  Nothing is synced to the disk on either side.
Needs the extra `test` (torch for the naive peer and for the .bin file) and about 8 GB of scratch space.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from big_drafters import SIZES, many_layers, write_bin, write_drafter

MIB = 1 << 20

IN_PROCESS = """
import sys, time
from pathlib import Path
import eagle3convert.conversion as c
from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.checkpoint.writer import write_weights
source, out, fmt, verify = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "verified"
c.convert(sys.argv[5], out.parent / "warm", fmt, "sglang", durable=False, force=True)
if verify:
    start = time.perf_counter()
    c.convert(source, out, fmt, "sglang", durable=False)
    print(time.perf_counter() - start)
else:
    with open_checkpoint(source) as checkpoint:
        plan = c.plan_checkpoint(checkpoint, fmt, "sglang", c.Options())
        rows = c.output_tensors(plan)
        out.mkdir()
        start = time.perf_counter()
        write_weights(out, rows, {"format": "pt"}, durable=False)
        print(time.perf_counter() - start)
"""
# The kernel's own high-water mark of this very program; what wait4 tells would begin with the parent's.
PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
WHOLE = f"""
import sys, eagle3convert as e
e.convert(sys.argv[1], sys.argv[2], sys.argv[3], "sglang", durable=False, verify=sys.argv[4] == "verified")
{PEAK}
"""
NAIVE = """
import sys, os
from safetensors.torch import load_file, save_file
tensors = load_file(sys.argv[1] + "/model.safetensors")
os.mkdir(sys.argv[2])
renamed = {k.replace("layers.0.", "midlayer."): v for k, v in tensors.items()}
save_file(renamed, sys.argv[2] + "/model.safetensors", metadata={"format": "pt"})
"""


@dataclass
class Run:
    """One finished command: its wall seconds, and the number that it printed last (if any)."""

    wall: float
    told: float | None


def run(words: list[str]) -> Run:
    """Run a command to its end; its failure ends the benchmark."""
    start = time.perf_counter()
    # An installed package has its bytecode; a checkout gets it in the warm-up unless this variable forbids it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    wall = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(words[:4])} …: exit {done.returncode}\n{done.stderr}")
    last = (done.stdout.split() or [""])[-1]
    return Run(wall, float(last) if last.replace(".", "", 1).replace("e-", "", 1).isdigit() else None)


def rounds(commands: dict[str, Callable[[], list[str]]], out: Path, count: int) -> dict[str, list[Run]]:
    """Every command once per round, the order turned by one each time; the first round is a warm-up."""
    names, runs = list(commands), {name: list[Run]() for name in commands}
    for number in range(count + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            os.sync()
            done = run(commands[name]())
            if number:
                runs[name].append(done)
    return runs


class Table:
    """The figures and their bounds."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, what: str, value: float, bound: str, holds: bool) -> None:
        self.rows.append({"what": what, "value": round(value, 3), "bound": bound, "holds": holds})
        print(f"{'ok  ' if holds else 'MISS'}  {what}: {value:.2f} ({bound})", flush=True)

    def ratio(self, what: str, a: list[float], b: list[float], bound: float, least: bool = False) -> None:
        value = statistics.median(x / y for x, y in zip(a, b, strict=True))
        self.add(what, value, f"{'>=' if least else '<='} {bound}", value >= bound if least else value <= bound)


def big(table: Table, scratch: Path, name: str, count: int) -> None:
    """The data path, the verified conversion and the whole process on a large drafter."""
    source, small, out = scratch / name, scratch / "small", scratch / "out"
    write_drafter(source, **SIZES[name])
    write_drafter(small, **SIZES["small"])
    python, here = sys.executable, str(out / "x")
    inside = [python, "-c", IN_PROCESS, str(source), here, "speculators"]
    commands: dict[str, Callable[[], list[str]]] = {
        "cp": lambda: ["cp", "-r", str(source), here],
        "data": lambda: [*inside, "unverified", str(small)],
        "verified": lambda: [*inside, "verified", str(small)],
        "whole": lambda: [python, "-c", WHOLE, str(source), here, "speculators", "verified"],
        "unverified": lambda: [python, "-c", WHOLE, str(source), here, "speculators", "unverified"],
        "naive": lambda: [python, "-c", NAIVE, str(source), here],
        "bare": lambda: [python, "-c", PEAK],
    }
    runs = rounds(commands, out, count)
    size = (source / "model.safetensors").stat().st_size / 1e9
    wall = {name: [r.wall for r in done] for name, done in runs.items()}
    told = {name: [r.told or 0.0 for r in done] for name, done in runs.items()}
    seconds = ", ".join(f"{name} {statistics.median(walls):.2f} s" for name, walls in wall.items())
    print(f"{size:.2f} GB, whole processes: {seconds}")
    table.ratio(f"{size:.2f} GB: data path / cp", told["data"], wall["cp"], 1.1)
    table.ratio(f"{size:.2f} GB: converted and verified by name / cp", told["verified"], wall["cp"], 1.8)
    table.ratio(
        f"{size:.2f} GB: load_file + save_file / whole process", wall["naive"], wall["unverified"], 5.0, least=True
    )
    table.ratio(f"{size:.2f} GB: the same, with verification", wall["naive"], wall["whole"], 3.5, least=True)
    peak = (max(told["whole"]) - min(told["bare"])) / 1024
    table.add(f"{size:.2f} GB: peak MiB above a bare interpreter", peak, "<= 60", peak <= 60)
    shutil.rmtree(source)


def torch_file(table: Table, scratch: Path, count: int) -> None:
    """A pytorch_model.bin to safetensors, without torch."""
    source, small, out = scratch / "bin", scratch / "small", scratch / "out"
    write_bin(source, **SIZES["8B"])
    write_drafter(small, **SIZES["small"])
    inside = [sys.executable, "-c", IN_PROCESS, str(source), str(out / "x"), "speculators"]
    runs = rounds(
        {"cp": lambda: ["cp", "-r", str(source), str(out / "x")], "data": lambda: [*inside, "unverified", str(small)]},
        out,
        count,
    )
    told, cp = [r.told or 0.0 for r in runs["data"]], [r.wall for r in runs["cp"]]
    table.ratio("0.85 GB .bin -> safetensors / cp", told, cp, 1.7)
    shutil.rmtree(source)


def start_up(table: Table, scratch: Path, count: int) -> None:
    """`--help` and a rename-only conversion of a small drafter, against a bare interpreter."""
    small, out = scratch / "small", scratch / "out"
    write_drafter(small, **SIZES["small"])
    python = sys.executable
    program = [python, "-m", "eagle3convert"]
    runs = rounds(
        {
            "bare": lambda: [python, "-c", "pass"],
            "help": lambda: [*program, "--help"],
            "small": lambda: [*program, "speculators", "sglang", str(small), str(out / "x"), "-q"],
        },
        out,
        max(count, 9),
    )
    bare = [r.wall for r in runs["bare"]]
    table.ratio("--help / python -c pass", [r.wall for r in runs["help"]], bare, 8.0)
    table.ratio("convert 300 KB / python -c pass", [r.wall for r in runs["small"]], bare, 25.0)


def growth(table: Table, scratch: Path, count: int) -> None:
    """Ten times the tensors should take no more than about ten times as long."""
    few, many, out, small = scratch / "few", scratch / "many", scratch / "out", scratch / "small"
    many_layers(few, 111)
    many_layers(many, 1111)
    write_drafter(small, **SIZES["small"])
    inside = [sys.executable, "-c", IN_PROCESS]
    runs = rounds(
        {
            "few": lambda: [*inside, str(few), str(out / "x"), "speculators", "verified", str(small)],
            "many": lambda: [*inside, str(many), str(out / "x"), "speculators", "verified", str(small)],
        },
        out,
        count,
    )
    told = {name: [r.told or 0.0 for r in done] for name, done in runs.items()}
    table.ratio("10,000 tensors / 1,000 tensors", told["many"], told["few"], 12.0)


PARTS: dict[str, Callable[[Table, Path, int], None]] = {
    "start": start_up,
    "growth": growth,
    "8B": lambda table, scratch, count: big(table, scratch, "8B", count),
    "2.4GB": lambda table, scratch, count: big(table, scratch, "2.4GB", count),
    "bin": torch_file,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, default=None, help="a folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    table = Table()
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        for name in args.only.split(","):
            PARTS[name](table, Path(folder), args.rounds)
    if args.json:
        args.json.write_text(json.dumps(table.rows, indent=2) + "\n")
    missed = [row for row in table.rows if not row["holds"]]
    print(f"{len(table.rows) - len(missed)} of {len(table.rows)} bounds hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
