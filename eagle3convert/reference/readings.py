"""The other readings of a drafter that are plausible, and a greedy, bounded search for the one that drafts best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

from eagle3convert.conventions import default_states
from eagle3convert.reference.bench import Variant

ALL_SUBSETS = 100  # so many lists of aux layers are all tried; of more, only those near the best one so far
ALL_ORDERS = 4  # aux states up to which every order is tried
CORNERS = ("norm_before_residual", "norms_swapped")  # wrong together with wrong aux layers, either may look right
PATIENCE = {True: 3, False: 1}  # thorough or not: readings whose neighbours are tried in vain before the search ends
LISTS = (("2", "n//2", "n-3"), ("3", "n//2+1", "n-2"), ("1", "n//2-1", "n-4"))  # what programs capture by default
FLAGS = ("norm_before_residual", "norm_output", "norms_swapped", "final_norm")


@dataclass(frozen=True)
class Space:
    """What can be varied: the captured states, the vocab maps and the switches."""

    states: tuple[int, ...]
    numbered: bool
    maps: tuple[str, ...]
    layers: int | None
    bypassable: bool  # fc can be left out: the states are as wide as the drafter
    flags: tuple[str, ...] = FLAGS

    def aux_lists(self, variant: Variant) -> Iterator[tuple[int, ...]]:
        """Other lists of aux layers, the likeliest first: shifted, with the embedding, reordered, one changed."""
        aux, count = variant.aux, len(variant.aux)
        if self.numbered:
            ordered = tuple(sorted(aux))
            yield tuple(k - 1 for k in aux)
            yield tuple(k + 1 for k in aux)
            yield (0, *ordered[:-1])
            yield (0, *ordered[1:])
            for places in LISTS if self.layers is not None and count == len(LISTS[0]) else ():
                yield default_states(places, self.layers or 0)
        if count <= ALL_ORDERS:
            yield from permutations(aux)
        else:
            yield aux[::-1]
            for i in range(count - 1):
                yield (*aux[:i], aux[i + 1], aux[i], *aux[i + 2 :])
        if not self.numbered:
            return
        if math.comb(len(self.states), count) <= ALL_SUBSETS:
            yield from combinations(sorted(self.states), count)
        near = sorted((abs(k - aux[j]), j, k) for j in range(count) for k in self.states if k not in aux)
        for _, j, k in near:
            yield tuple(sorted((*aux[:j], k, *aux[j + 1 :])))

    def neighbours(self, variant: Variant) -> Iterator[Variant]:
        """Every reading that differs from this one in one respect (its vocab map aside), each once."""
        seen = {variant.run_key}
        held = set(self.states)
        for flag in self.flags:
            yield replace(variant, form=_flipped(variant.form, flag))
        for aux in self.aux_lists(variant):
            other = replace(variant, aux=aux)
            if other.run_key not in seen and set(aux) <= held and len(set(aux)) == len(aux):
                seen.add(other.run_key)
                yield other
        if self.bypassable and not variant.form.fc_bypassed:
            for k in dict.fromkeys((variant.aux[-1], max(self.states))):
                yield replace(variant, form=replace(variant.form, fc_bypassed=True), aux=(k,))


def _flipped(form: Any, flag: str) -> Any:
    return replace(form, **{flag: not getattr(form, flag)})


@dataclass(frozen=True)
class Tried:
    """A reading with its share of right tokens at draft step 0, and its acceptance length in the search."""

    variant: Variant
    share: float
    length: float


@dataclass(frozen=True)
class Effort:
    """How hard to search, and when to stop."""

    budget: int  # runs of the drafter at most
    noise: float  # gain in acceptance length that may be chance
    perfect: float  # acceptance length beyond which nothing is left to gain
    thorough: bool
    good: float = 0.5  # share at draft step 0 with which a search that is not thorough is content


Probe = Callable[[Variant], Tried]
Runs = Callable[[], int]  # how often the drafter has been run


def search(space: Space, start: Variant, probe: Probe, runs: Runs, effort: Effort) -> list[Tried]:
    """Every reading that was tried, the best first.

    A reading is expanded by trying all its neighbours, each under every vocab map.  First the start is expanded, and
    the start with those switches flipped that hide each other (CORNERS), unless the effort is small and a good
    reading is found already; then always the best reading that is not expanded yet, until some of them in a row
    brought nothing better or the budget of runs is spent.
    """
    tried: dict[tuple[Any, ...], Tried] = {}
    expanded: set[tuple[Any, ...]] = set()
    limit = runs() + effort.budget

    def attempt(variant: Variant) -> None:
        for name in (variant.vocab, *(name for name in space.maps if name != variant.vocab)):
            under = replace(variant, vocab=name)
            if (*under.run_key, name) not in tried:
                tried[(*under.run_key, name)] = probe(under)

    def best() -> Tried:
        return max(tried.values(), key=lambda one: one.length)

    def expand(variant: Variant) -> bool:
        """Try all neighbours; whether one of them is the best reading so far by more than chance."""
        before = best().length
        expanded.add(variant.run_key)
        for other in space.neighbours(variant):
            if runs() >= limit:
                break
            attempt(other)
        return best().length > before + effort.noise

    flips = [flag for flag in CORNERS if flag in space.flags]
    corners = [start]
    for flag in flips:
        corners += [replace(v, form=_flipped(v.form, flag)) for v in corners]
    for variant in corners:
        attempt(variant)
    for variant in corners:
        wanted = effort.thorough or best().share < effort.good
        if variant is start or (wanted and best().length < effort.perfect):
            expand(variant)
    idle = 0
    while idle < PATIENCE[effort.thorough] and runs() < limit and best().length < effort.perfect:
        open_ones = [one for one in tried.values() if one.variant.run_key not in expanded]
        if not open_ones:
            break
        idle = 0 if expand(max(open_ones, key=lambda one: one.length).variant) else idle + 1
    return sorted(tried.values(), key=lambda one: -one.length)


def finalists(tried: Sequence[Tried], start: Variant, count: int) -> list[Variant]:
    """The readings that are worth all draft steps: the start, the best ones, and the best one with less changed."""
    best = tried[0].variant
    chosen = [start, *(one.variant for one in tried[:count]), *simpler(best, start)]
    return list({(*v.run_key, v.vocab): v for v in chosen}.values())


def simpler(variant: Variant, start: Variant) -> Iterator[Variant]:
    """The reading with each of its differences from the start taken back."""
    if variant.form.fc_bypassed != start.form.fc_bypassed:
        return
    if variant.aux != start.aux:
        yield replace(variant, aux=start.aux)
    if variant.vocab != start.vocab:
        yield replace(variant, vocab=start.vocab)
    for flag in FLAGS:
        if getattr(variant.form, flag) != getattr(start.form, flag):
            yield replace(variant, form=_flipped(variant.form, flag))


@dataclass(frozen=True)
class Difference:
    """One respect in which a reading differs from the declared one, as the ends of sentences."""

    subject: str  # "aux_layers", "d2t", "fc", "norms_swapped" or a feature
    said: str  # "aux layers [0, 3, 31] instead of [3, 31, 59]"
    wrong: str = ""  # what of the drafter is declared wrong: "aux layers"
    fault: str = ""  # what else is wrong with it, where no declaration is: "two of its norms are swapped"


MAP_NAMES = {
    "offset": "offsets",
    "absolute": "absolute ids",
    "offset added twice": "ids that the draft id was added to once too often",
    "t2d": "the tokens that t2d selects, in ascending order",
    "none": "target ids as they are",
}


def differences(variant: Variant, declared: Variant) -> list[Difference]:
    """What a reading says otherwise than the declared one."""
    found = []
    form, other = variant.form, declared.form
    if form.fc_bypassed and not other.fc_bypassed:
        said = f"hidden_states {variant.aux[0]} fed into layer 0 past fc"
        found.append(Difference("fc", said, fault="its fc spoils what it is fed with"))
    elif variant.aux != declared.aux:
        said = f"aux layers {list(variant.aux)} instead of {list(declared.aux)}"
        if sorted(variant.aux) == sorted(declared.aux):
            found.append(Difference("aux_layers", said, fault="its fc takes the aux layers in another order"))
        else:
            found.append(Difference("aux_layers", said, "aux layers"))
    if variant.vocab != declared.vocab:
        said = f"d2t read as {MAP_NAMES[variant.vocab]} instead of {MAP_NAMES[declared.vocab]}"
        found.append(Difference("d2t", said, "d2t"))
    for flag in FLAGS:
        value, before = getattr(form, flag), getattr(other, flag)
        if value == before:
            continue
        if flag == "norms_swapped":
            said = "hidden_norm and input_layernorm swapped"
            found.append(Difference(flag, said, fault="two of its norms are swapped"))
        else:
            found.append(Difference(flag, f"{flag} {str(value).lower()} instead of {str(before).lower()}", flag))
    return found


def blame(found: Sequence[Difference]) -> str:
    """What is wrong with a drafter that drafts well under these differences, as the end of a sentence."""
    wrong = [d.wrong for d in found if d.wrong]
    faults = [d.fault for d in found if d.fault]
    if wrong:
        verb = "are" if len(wrong) > 1 or wrong == ["aux layers"] else "is"
        faults.insert(0, f"its {' and '.join(wrong)} {verb} declared wrong")
    return " and ".join(faults)
