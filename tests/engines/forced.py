"""Conversions that the plan refuses, carried out all the same: to see what the engine would have made of them."""

from __future__ import annotations

from pathlib import Path

from eagle3convert.canonical import FEATURES
from eagle3convert.conversion import write_plan
from eagle3convert.formats import load_format
from eagle3convert.hub.opening import open_source
from eagle3convert.planning import make_plan
from eagle3convert.reading import Statements
from eagle3convert.schema import Decoder, FeatureRule, FormatSchema
from eagle3convert.verifier import from_file


def boastful(name: str) -> FormatSchema:
    """A format as if its engine could do everything: fields and tensors go where it would look for them."""
    schema = load_format(name)
    features = {}
    for feature, rule in schema.features.items():
        if not rule.is_fixed:
            features[feature] = rule
        elif rule.config_key is not None or FEATURES[feature].source == "config":
            features[feature] = FeatureRule(config_key=rule.config_key or feature, absent=rule.fixed_value)
        else:
            features[feature] = FeatureRule(any_value=True)
    kinds = dict(schema.decoders)
    if not kinds["qwen3"].architectures:
        kinds["qwen3"] = Decoder(architectures=kinds["llama"].architectures[:1], model_types=("qwen3",))
    rules = {feature: rule.model_copy(update={"not_for": ()}) for feature, rule in features.items()}
    return schema.model_copy(update={"features": rules, "decoders": kinds})


def force(source: Path, out: Path, source_format: str, destination: str, verifier: Path) -> Path:
    """Convert a drafter that `destination` refuses, as its format would spell it."""
    with open_source(source) as checkpoint:
        statements = Statements(verifier=from_file(verifier))
        plan = make_plan(checkpoint, load_format(source_format), boastful(destination), statements)
        return write_plan(plan, out).path
