"""eagle3convert: EAGLE-3 drafters from one format into another, proven to be the same drafter.

The names below are the public API; each is imported when it is first used, so that `import eagle3convert` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eagle3convert.errors import (
    CheckpointError,
    Eagle3ConvertError,
    FormatError,
    OutputError,
    Refused,
    UsageError,
    VerificationFailed,
)
from eagle3convert.version import __version__

if TYPE_CHECKING:
    from eagle3convert.comparison import compare as diff
    from eagle3convert.conversion import Result, convert, plan, verify
    from eagle3convert.doctor import examine as diagnose
    from eagle3convert.formats import format_names, load_format
    from eagle3convert.hub.errors import HubError
    from eagle3convert.hub.opening import open_source as load_checkpoint
    from eagle3convert.hub.push import push_to_hub
    from eagle3convert.hub.run_dir import convert_all
    from eagle3convert.inspection import inspect_drafter as inspect
    from eagle3convert.options import Options
    from eagle3convert.reference.replay import replay
    from eagle3convert.state_dict import convert_state_dict

_PLACES = {
    "Options": ("options", "Options"),
    "Result": ("conversion", "Result"),
    "convert": ("conversion", "convert"),
    "convert_state_dict": ("state_dict", "convert_state_dict"),
    "diagnose": ("doctor", "examine"),
    "diff": ("comparison", "compare"),
    "format_names": ("formats", "format_names"),
    "inspect": ("inspection", "inspect_drafter"),
    "load_checkpoint": ("hub.opening", "open_source"),
    "load_format": ("formats", "load_format"),
    "HubError": ("hub.errors", "HubError"),
    "convert_all": ("hub.run_dir", "convert_all"),
    "plan": ("conversion", "plan"),
    "push_to_hub": ("hub.push", "push_to_hub"),
    "replay": ("reference.replay", "replay"),
    "verify": ("conversion", "verify"),
}

__all__ = [
    "CheckpointError",
    "Eagle3ConvertError",
    "FormatError",
    "HubError",
    "Options",
    "OutputError",
    "Refused",
    "Result",
    "UsageError",
    "VerificationFailed",
    "__version__",
    "convert",
    "convert_all",
    "convert_state_dict",
    "diagnose",
    "diff",
    "format_names",
    "inspect",
    "load_checkpoint",
    "load_format",
    "plan",
    "push_to_hub",
    "replay",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'eagle3convert' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    value = getattr(import_module(f"eagle3convert.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
