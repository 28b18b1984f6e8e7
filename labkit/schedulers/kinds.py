"""What each scheduler is: its kind, how it differs from the others, and where it was published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

OTHERS: Final = "Others"
KINDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Order of jobs, with the gangs they request": {
        "fifo": ("in order of arrival, without preemption", ""),
        "easy": ("fifo with backfilling that never delays the first waiting job", "Lifka, JSSPP 1995"),
        "slurm": ("priorities, a main pass that stops at what does not fit, and backfill by plans", "Slurm's manual"),
        "recorded": ("the schedule that the trace recorded, to compare others with", ""),
        "sjf": ("shortest declared duration first, without preemption", ""),
        "srtf": ("shortest remaining declared time first, with preemption", "Schrage, Oper. Res. 1968"),
        "qssf": ("least GPU-time first, as predicted from jobs that ended", "Helios, SC 2021"),
        "lucid": ("qssf, packed onto the GPUs of running jobs that it hardly slows", "Lucid, ASPLOS 2023"),
        "las": ("least attained GPU-time first, in queues", "Tiresias, NSDI 2019"),
        "tiresias": ("las in K queues, with promotion and the Gittins index", "Tiresias, NSDI 2019"),
        "muri": ("least remaining GPU-time first, in pairs that interleave on their GPUs", "Zhao et al., SIGCOMM 2022"),
        "shockwave": ("rounds planned for the product of progress, makespan and fair ends", "Zheng et al., NSDI 2023"),
        "synergy": ("any order in rounds; cores and memory where they gain most", "Mohan et al., OSDI 2022"),
        "tetris": ("best fit to the free resources, plus little remaining work", "Grandl et al., SIGCOMM 2014"),
        "static": ("in order of arrival, each gang as configured and never changed", ""),
    },
    "Number of tasks of each job": {
        "drf": ("equal dominant shares, by progressive filling", "Ghodsi et al., NSDI 2011"),
        "optimus": ("largest gain of one more task, with models fitted online", "Peng et al., EuroSys 2018"),
        "autoscale": ("more workers while each is worth it", "Or et al., MLSys 2020"),
        "dlrover": ("plans of workers, servers and cores from models fitted online", "Wang et al., VLDB 2024"),
        "dl2": ("slot_aware with trained numbers, on speeds learned online; or networks", "Peng et al., TPDS 2021"),
        "slot_aware": ("tasks that save the most slots for their share; jobs that end within the slot first", ""),
        "pollux": ("largest harmonic mean of speed-ups in goodput, restarts counted", "Qiao et al., OSDI 2021"),
        "pollux_optimus": ("the Optimus of Pollux' simulator, with true speeds: an oracle", "Qiao et al., OSDI 2021"),
        "afs": ("one worker after another, by a rule for each two jobs", "Hwang et al., NSDI 2021"),
        "elasticflow": ("admits jobs whose deadlines it can meet, with the least for each", "Gu et al., ASPLOS 2023"),
        "hesrpt": ("optimal shares of jobs of known size with sublinear speed-up", "Berg et al., PEVA 2020"),
        "constant": ("the same gang for every job: a baseline", ""),
        "lookahead": ("largest gain of a few tasks with all speeds known: an oracle", ""),
    },
    "Device types": {
        "sia": ("a type and a number of workers by goodput, restarts counted", "Jayaram Subramanya et al., SOSP 2023"),
        "gavel_las": ("max-min fair over effective throughputs", "Narayanan et al., OSDI 2020"),
        "gavel_ftf": ("least maximum finish-time fairness", "Themis, NSDI 2020; Gavel, OSDI 2020"),
        "gavel_makespan": ("least makespan", "Gavel, OSDI 2020"),
        "gavel_fifo": ("in order of arrival, on the fastest type with room", "Gavel, OSDI 2020"),
        "gavel_sjf": ("shortest remaining time on the fastest type first", "Gavel, OSDI 2020"),
        "gavel_throughput": ("most steps per second in total", "Gavel, OSDI 2020"),
        "gavel_cost": ("most work per dollar", "Gavel, OSDI 2020"),
        "gavel_slo": ("most work per dollar that still meets the SLOs", "Gavel, OSDI 2020"),
        "gavel_hierarchical": ("water filling between entities and within them", "Gavel, OSDI 2020"),
        "gavel_proportional": ("the same share of time on every type", "Gavel, OSDI 2020"),
        "gavel_isolated": ("1/J of every type for each of J jobs", "Gavel, OSDI 2020"),
        "gavel_allox": ("matching with places in queues, for least total completion time", "AlloX, EuroSys 2020"),
        "gavel_gandiva": ("equal time, and random pairs that share GPUs", "Gandiva, OSDI 2018"),
        "gavel_gandiva_fair": ("equal shares of every type, then trades", "Chaudhary et al., EuroSys 2020"),
        "gavel_strategy_proof": ("largest product of shares, reduced so that lying does not pay", "Gavel, OSDI 2020"),
    },
    "Placement among neighbours, in pods": {
        "marl": ("a learned policy per pod, trained with imitation and policy gradient", "Zhao and Wu, TNSM 2021"),
        "attention": ("a learned policy with attention over machines", "SCARL, IEEE Access 2019"),
        "deepsys": ("a learned model that predicts the slowdown of each placement", "DeepSys, Internetware 2020"),
        "least_interference": ("least total interference, estimated by a fitted model", "Zhao and Wu, TNSM 2021"),
        "interference_aware": ("least foreseen slowdown, waiting a while for a better place", ""),
        "look_ahead_pods": ("least slowdown by the true interference: an oracle", ""),
        "load_balance": ("the least loaded machines", "Zhao and Wu, TNSM 2021"),
        "kubernetes": ("the least allocated machine, as Kubernetes' default scorer", ""),
        "tetris_pods": ("best fit to the free resources (Tetris)", "Grandl et al., SIGCOMM 2014"),
        "even_pods": ("tasks spread evenly over as few machines as possible (Optimus)", "Peng et al., EuroSys 2018"),
        "whole_gang": ("the whole gang at once where it slows and is slowed least", ""),
        "even": ("as even_pods, with one scheduler for the whole cluster", "Peng et al., EuroSys 2018"),
        "partitioned": ("any placer in each pod: the base of the others", ""),
    },
}  # fmt: skip
"""Kind -> name -> how it differs from others, and its source; a name's variants `NAME_agnostic` follow it."""
AGNOSTIC: Final = "_agnostic"


def by_kind(names: Iterable[str]) -> dict[str, dict[str, tuple[str, str]]]:
    """Return schedulers by kind, in the order of the table; what it does not know comes last, without a line.

    >>> list(by_kind(["srtf", "fifo", "mine"]).items())[1]
    ('Others', {'mine': ('', '')})
    """
    left = dict.fromkeys(names)
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for kind, entries in KINDS.items():
        for name, (line, source) in entries.items():
            for each, what in ((name, line), (name + AGNOSTIC, f"{line}, knowing no speeds")):
                if each in left:
                    del left[each]
                    found.setdefault(kind, {})[each] = (what, source)
    if left:
        found[OTHERS] = dict.fromkeys(left, ("", ""))
    return found
