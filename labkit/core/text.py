"""Text that people type: lists of names, and text that is too long for a message."""

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


def shortened(text: str, *, most: int = 100) -> str:
    """Return a text that fits into a message.

    >>> shortened("poisson(80)"), shortened("(" * 5000, most=4)
    ('poisson(80)', '((((... (5,000 letters)')
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} letters)"
