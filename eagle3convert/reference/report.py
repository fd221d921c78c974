"""The report of a replay: what was measured, ranked, and what follows from it, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3convert.errors import UsageError
from eagle3convert.reference.bench import Score, Variant
from eagle3convert.reference.engines import EngineOutcome
from eagle3convert.reference.fix import Fix
from eagle3convert.reference.readings import Difference, blame

SOUND = 0.3  # a drafter that names fewer of the next tokens helps nobody; trained ones name more than half
LISTED = 8  # readings in the text and in the picture
WIDTH = 62  # of the names in the text
CLOSE = 0.05  # shares at step 0 that differ by less are told apart by the acceptance length


@dataclass(frozen=True)
class Outcome:
    """A reading with its score in every draft step, and what it says otherwise than the declared one."""

    variant: Variant
    score: Score
    differences: tuple[Difference, ...]

    @property
    def name(self) -> str:
        return ", ".join(d.said for d in self.differences) or "as declared"

    @property
    def length(self) -> float:
        return self.score.length

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "changes": [d.subject for d in self.differences], "aux_layers": list(self.variant.aux),
            "d2t": self.variant.vocab, "shares": list(self.score.shares), "positions": list(self.score.positions),
            "acceptance_length": self.length,
        }  # fmt: skip


@dataclass(frozen=True)
class ReplayReport:
    """How well a drafter drafts on captured states: as declared, as served, and under every other reading, ranked."""

    drafter: str
    format_name: str
    files: tuple[str, ...]
    positions: int
    sequences: int
    states: tuple[int, ...]
    numbered: bool
    judged_by: str
    declared_layers: tuple[int, ...]
    declared: Outcome | None  # None where the capture does not hold the declared states
    engines: tuple[EngineOutcome, ...]
    ranked: tuple[Outcome, ...]
    explored: tuple[tuple[str, float], ...]  # every reading that was tried, with its share at draft step 0
    winner: Outcome
    tried: int
    runs: int
    ceiling: float
    fix: Fix
    missing: tuple[str, ...] = ()  # canonical tensors that the checkpoint does not hold
    fresh: tuple[str, ...] = ()  # norms of a decoder layer that are as before any training
    notes: tuple[str, ...] = field(default=())

    @property
    def sound(self) -> bool:
        """Whether some reading drafts well."""
        return self.winner.score.shares[0] >= SOUND

    @property
    def declared_wins(self) -> bool:
        return self.winner is self.declared

    @property
    def fix_command(self) -> str | None:
        """The command that converts the drafter under the winning reading; None where there is nothing to fix."""
        return self.fix.command if self.sound and not self.declared_wins and not self.damage else None

    @property
    def sentence(self) -> str:
        """What follows, in one sentence."""
        best = self.winner
        close = self.declared is not None and abs(best.score.shares[0] - self.declared.score.shares[0]) < CLOSE

        def named(outcome: Outcome) -> str:
            length = f" (acceptance length {outcome.length:.2f})" if close and not self.declared_wins else ""
            return f"{_percent(outcome.score.shares[0])}{length}"

        if self.declared is None:
            before = f"declared reading: aux layers {list(self.declared_layers)} are not in the capture"
        else:
            before = f"declared reading {named(self.declared)}"
        found = "" if self.declared_wins else f"; with {best.name}: {named(best)}"
        if self.damage:
            return f"{before}{found}: {self.damage}"
        if not self.sound:
            reached = f"the best of {self.tried} names {_percent(best.score.shares[0])} of the right tokens"
            return f"no reading drafts well ({reached}): the weights are undertrained or damaged"
        if self.declared_wins:
            return f"{before}: the drafter is sound as declared"
        return f"{before}{found}: the drafter is sound, {blame(best.differences)}"

    @property
    def damage(self) -> str:
        """What is wrong with the weights themselves, which no reading can repair; empty where nothing is seen."""
        if self.missing:
            listed = ", ".join(self.missing[:3]) + (" …" if len(self.missing) > 3 else "")
            return (
                f"{len(self.missing)} tensors are not in the checkpoint ({listed}) and noise stands for them, which no "
                f"reading can repair: export the drafter again"
            )
        if self.fresh:
            return (
                f"the norms of the decoder layer ({self.fresh[0]} …) are exactly 1 throughout, as before any training, "
                f"so that the layer was probably lost on the way and started afresh, which no reading can repair: "
                f"export the drafter again"
            )
        return ""

    def as_json(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter, "format": self.format_name, "files": list(self.files), "positions": self.positions,
            "sequences": self.sequences, "states": list(self.states) if self.numbered else None,
            "judged_by": self.judged_by, "declared": self.declared.as_json() if self.declared else None,
            "engines": [e.as_json() for e in self.engines], "ranked": [o.as_json() for o in self.ranked],
            "explored": [{"name": name, "share": share} for name, share in self.explored],
            "winner": self.winner.as_json(), "declared_wins": self.declared_wins, "sound": self.sound,
            "readings_tried": self.tried, "runs": self.runs, "draft_vocabulary_holds": self.ceiling,
            "missing": list(self.missing), "untrained": list(self.fresh), "notes": list(self.notes),
            "sentence": self.sentence,
            "fix": self.fix.as_json() if self.fix_command else None,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The report as text; the sentence and the command come last."""
        held = f"hidden_states {list(self.states)}" if self.numbered else f"{len(self.states)} states without numbers"
        lines = [
            f"{self.drafter}, read as {self.format_name}, on {self.positions} positions in {self.sequences} sequences",
            f"  {held}; judged by {self.judged_by}",
            f"  {_percent(self.ceiling)} of the right tokens are in the draft vocabulary",
            "",
            _row(
                "share of right tokens at draft step", [str(s) for s in range(len(self.winner.score.shares))], "length"
            ),
        ]
        if self.declared is not None:
            lines.append(_scored("as declared", self.declared.score))
        else:
            lines.append(f"  as declared: the capture does not hold aux layers {list(self.declared_layers)}")
        for engine in self.engines:
            if engine.score is None:
                lines.append(f"  {engine.name}: {engine.stops}")
            else:
                lines.append(_scored(engine.name, engine.score))
            lines += [f"      it ignores {what}" for what in engine.ignored]
        lines += ["", f"other readings ({self.tried} tried, {self.runs} runs of the drafter), the best first:"]
        lines += [_scored(o.name, o.score) for o in self.ranked if o.differences][:LISTED]
        lines += [f"  {note}" for note in self.notes]
        lines += ["", self.sentence]
        if self.fix_command:
            lines += self.fix.lines()
        return lines

    def plot(self, path: str | Path) -> None:
        """Draw the share of right tokens by draft step, a line per reading, into a picture file."""
        try:
            from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise UsageError(
                "--plot draws with matplotlib, which is not installed. Install it with: pip install matplotlib"
            ) from None
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        shown = [("as declared", self.declared.score)] if self.declared else []
        shown += [(f"as {e.reader} serves it", e.score) for e in self.engines if e.score is not None]
        shown += [(o.name, o.score) for o in self.ranked if o.differences][:LISTED]
        for name, score in shown:
            axes.plot(range(len(score.shares)), [100 * s for s in score.shares], marker="o", label=name)
        axes.set(xlabel="draft step", ylabel="right tokens (%)", ylim=(0, 101), title=Path(self.drafter).name)
        axes.set_xticks(range(len(self.winner.score.shares)))
        axes.legend(fontsize="x-small")
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: the picture cannot be written: {error}.") from None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _row(name: str, cells: list[str], last: str) -> str:
    long = [f"  {name}"] if len(name) > WIDTH else []
    cells = [f"{cell:>8}" for cell in (*cells, last)]
    return "\n".join([*long, f"  {'' if long else name:<{WIDTH}}" + "".join(cells)])


def _scored(name: str, score: Score) -> str:
    return _row(name, [_percent(s) for s in score.shares], f"{score.length:.2f}")
