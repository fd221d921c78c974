"""How many threads torch computes with: one for small drafters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 512  # hidden size below which an operation on 512 positions takes one thread less than 5 ms


@contextmanager
def threads_for(hidden_size: int) -> Iterator[None]:
    """One thread while a small drafter is computed; afterwards as many as before (they belong to the whole process).

    torch's threads wait for each other after every operation.  Where other programs keep the cores busy, as on a
    machine that trains, each wait can be a turn of the scheduler.  Measured on two busy cores: 60 ms for an operation
    of 0.2 ms, and a minute for the demo's replay in place of two seconds.
    """
    before = torch.get_num_threads()
    if hidden_size < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
