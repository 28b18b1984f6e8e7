"""`labkit train-policy dl2 --published`: switches from a command line, and the trainer that follows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from labkit.core.errors import InputError
from reproductions.switches import read_switch

if TYPE_CHECKING:
    from labkit.learning.settings import Setting
    from reproductions.dl2.federated import Federated
    from reproductions.dl2.trainer import Trainer

SHORT: Final = {"lessons": "n_lessons", "rounds": "n_rounds", "warm_up": "warm_up"}
"""Options of the command that are switches, too."""


def trainer_of(
    setting: Setting, *, slot_s: float, seed: int, settings: Sequence[str], options: dict[str, Any], client: Any = None
) -> Trainer | Federated:
    """Return a trainer of DL2's own network.

    Raise InputError if there is no such switch, or its value cannot be.

    Parameters
    ----------
    settings : sequence of str
        Switches of `reproductions.dl2.Published`, each NAME=VALUE; `rules=released` brings what the released
        code does otherwise with it.
    options : dict
        Values of `SHORT`; None: not given.
    client : Client, optional
        Of a Dask cluster, for several clusters at once; None: a process for each of them.
    """
    from labkit.workloads.catalogue import DL2_MODELS
    from reproductions.dl2.switches import Published
    from reproductions.dl2.trainer import Trainer

    values = dict(read_switch(one, Published(), what="switch") for one in settings)
    values |= {SHORT[name]: value for name, value in options.items() if value is not None}
    switches = Published.released(**values) if values.get("rules") == "released" else Published(**values)
    met = setting.models()
    models = [name for name in DL2_MODELS if name in met] + [name for name in met if name not in DL2_MODELS]
    if set(met) <= set(DL2_MODELS):
        models = list(DL2_MODELS)  # so that types are the numbers that they have in the released code
    if switches.clusters > 1:
        from reproductions.dl2.federated import PROCESSES, Federated

        return Federated(setting, models, slot_s, seed=seed, switches=switches, where=client or PROCESSES)
    if client is not None:
        raise InputError(
            "--dask is for several clusters at once; expected --set clusters=K with it. Add that, or drop it."
        )
    return Trainer(setting, models, slot_s, seed=seed, switches=switches)


@contextmanager
def lent_trainer(setting: Setting, *, dask: str | None, **options: Any) -> Iterator[Trainer | Federated]:
    """Lend what `trainer_of` returns, on a Dask cluster if one is asked for; its processes are ended afterwards."""
    from labkit.experiment.on_dask import connect

    with connect(dask) as client, ExitStack() as stack:
        trainer = trainer_of(setting, client=client, **options)
        yield stack.enter_context(trainer) if isinstance(trainer, AbstractContextManager) else trainer
