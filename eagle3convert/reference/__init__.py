"""The project's own judge: the EAGLE-3 forward pass in plain torch, and what is measured with it.

`forward` is the specification of what a drafter computes, `interpretation` says how a reader takes a checkpoint,
`compare` proves a conversion by numbers, `replay` measures how well a drafter drafts on captured hidden states.
Everything here needs torch, so the package is imported only where a user asks for it.
"""

from eagle3convert.errors import UsageError

OLDEST_TORCH = (2, 6)  # before it torch.load(weights_only=True) could be made to run code

try:
    import torch
except ImportError:
    raise UsageError(
        "torch is not installed, and the reference forward pass (verify --numeric, convert --numeric, replay) computes "
        "with it. Install it with: pip install 'eagle3convert[torch]'"
    ) from None

if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < OLDEST_TORCH:
    raise UsageError(
        f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST_TORCH))}, from which on loading a file of "
        "tensors runs nothing in it. Install a newer one with: pip install -U 'eagle3convert[torch]'"
    )
