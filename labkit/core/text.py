"""Lists that people type."""

from __future__ import annotations


def split_names(text: str) -> list[str]:
    """Return the names of a comma-separated list, leaving commas inside brackets alone.

    >>> split_names("fifo, las(threshold_gpu_s=60, quantum_s=5)")
    ['fifo', 'las(threshold_gpu_s=60, quantum_s=5)']
    """
    names, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            names.append("")
        else:
            names[-1] += letter
    return [name.strip() for name in names if name.strip()]
