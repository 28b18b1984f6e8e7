"""What tests of jobs share."""

from __future__ import annotations

from collections.abc import Iterator

import cloudpickle
import pytest

from tests.elastic import slow_training


@pytest.fixture(scope="module")
def by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let processes get what the file of a test, and slow_training, define without these files."""
    modules = [request.module, slow_training]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
