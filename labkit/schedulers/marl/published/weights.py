"""Networks of MARL as published in files: safetensors, with their form and where they come from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from labkit.core.errors import InputError
from labkit.core.weights import Tensors, WeightsFiles, fault_of, seconds
from labkit.schedulers.marl.published.form import Form
from labkit.schedulers.marl.published.graphs import Graphs
from labkit.schedulers.marl.published.network import Params, shapes

FILES: Final = WeightsFiles(
    policy="marl as published",
    version="1",
    remedy="Train it: labkit train-policy marl --published.",
    of="weights of MARL's own network",
)


@dataclass(frozen=True, eq=False)
class MarlWeights:
    """Trained networks of the published form.

    Attributes
    ----------
    nets : tuple of mapping
        Tensors by name (`labkit.schedulers.marl.published.network.shapes`): one that all schedulers share, or one each.
    form : Form
        What they see and may do.
    slot_s : float
        Seconds of a scheduling interval in their training.
    source : str
        How they were made.
    """

    nets: tuple[Params, ...]
    form: Form
    slot_s: float
    source: str

    def net(self, agent: int) -> Params:
        """Return the network of a scheduler."""
        return self.nets[agent if len(self.nets) > 1 else 0]

    def refuse_other(self, graphs: Graphs, *, cluster: str) -> None:
        """Raise if the networks are for another cluster.

        Raises
        ------
        InputError
            If they are separate ones of other schedulers, or a flat head's for pods of another size.
        """
        n, places = graphs.n_agents, {graph.n_places for graph in graphs.inner}
        if len(self.nets) not in (1, n):
            raise InputError(
                f"marl: these are the weights of {len(self.nets)} schedulers, one network each; {cluster} has {n} "
                "pods. Take weights that schedulers share, or a cluster with as many pods."
            )
        form = self.form
        if form.head == "flat" and (places != {form.n_places} or n != form.n_agents):
            sizes = ", ".join(map(str, sorted(places)))
            raise InputError(
                f"marl: a flat head is for {form.n_agents} pods of {form.n_places} places; {cluster} has {n} of "
                f"{sizes}. Take weights with head=equivariant, which fit any size."
            )

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all."""
        tensors = {f"{k}.{name}": tensor for k, net in enumerate(self.nets) for name, tensor in net.items()}
        FILES.write(
            path, tensors, form=json.dumps(asdict(self.form)), n_nets=str(len(self.nets)), slot_s=repr(self.slot_s),
            source=self.source,
        )  # fmt: skip


def load_published(path: str | Path) -> MarlWeights:
    """Return networks from a file.

    Raises
    ------
    InputError
        If it holds something else.
    """
    path = FILES.find(path)
    about, tensors = FILES.read(path)
    form, n_nets, slot_s = FILES.told(path, about, form=_form, n_nets=int, slot_s=seconds)
    FILES.refuse(path, _fault(tensors, form, n_nets))
    nets = tuple({name: tensors[f"{k}.{name}"] for name in shapes(form)} for k in range(n_nets))
    return MarlWeights(nets, form, slot_s, about.get("source", ""))


def _form(text: str) -> Form:
    """Return a form; raise KeyError, TypeError or ValueError if it is none."""
    kept = json.loads(text)
    return Form(**kept | {"models": tuple(kept["models"])})


def _fault(tensors: Tensors, form: Form, n_nets: int) -> str:
    """Return what is wrong with the tensors of a file; empty: nothing."""
    expected = {f"{k}.{name}": shape for k in range(n_nets) for name, shape in shapes(form).items()}
    if other := sorted(set(tensors) ^ set(expected)):
        what = "lacks" if other[0] in expected else "holds"
        return f"it {what} {other[0]}, which is {'' if other[0] in expected else 'not '}part of its form"
    return fault_of(tensors, expected)
