"""Results of torch to compare with: their bits, where torch rounds as the kernels of servers do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

FUSES = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
"""Whether torch's vector code fuses a product and a sum: on x86 processors without AVX2 it rounds each by itself."""

LIKE_TORCH = "equal bits" if FUSES else "largest difference"
"""How `--verify` finds a training beside a plain loop of torch."""


def assert_torch_s(ours: Any, theirs: Any) -> None:
    """Compare bits, or, where torch rounds otherwise, numbers."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if FUSES:
        assert ours.tobytes() == theirs.tobytes(), f"{np.count_nonzero(ours != theirs)} numbers differ"
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
