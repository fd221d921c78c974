"""The aux-layer ids that a conversion to SGLang writes for a verifier."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import eagle3convert
from eagle3convert.conventions import Ids
from tests.drafters import VERIFIER, make_drafter

FIELD = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Written:
    """What a plan makes of a drafter trained on `states`: its ids (None: left to the engine), or its errors."""

    states: Ids
    ids: Ids | None
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    encoded: Ids | None  # the ids that the plan would write, also where something else stands against it

    @property
    def candidates(self) -> tuple[Ids, ...]:
        """What one could write by hand: the states as they are, and each less one."""
        return self.states, tuple(state - 1 for state in self.states)


@cache
def drafter_on(states: Ids, space: Path) -> Path:
    return make_drafter("speculators", aux=states).write(space / "-".join(map(str, states)))


def written_ids(
    space: Path, states: Ids, model_type: str, architecture: str, layers: int, release: str = ""
) -> Written:
    """Plan the conversion of a drafter for a verifier of this family and layer count, and a release of SGLang."""
    facts = VERIFIER | {"model_type": model_type, "architectures": [architecture], "num_hidden_layers": layers}
    file = space / f"{model_type}-{architecture}-{layers}.json"
    file.write_text(json.dumps(facts), encoding="utf-8")
    plan = eagle3convert.plan(
        drafter_on(states, space), "speculators", "sglang", verifier_config=file, engine_version=release
    )
    codes = tuple(f.code for f in plan.errors), tuple(f.code for f in plan.warnings)
    encoded = plan.destination.aux_ids
    if plan.errors:
        return Written(states, None, *codes, encoded)
    ids = plan.output.config["eagle_config"].get(FIELD)
    return Written(states, None if ids is None else tuple(ids), *codes, encoded)
