"""BibTeX of the papers that the table of schedulers names: one entry for each source in `kinds.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from labkit.schedulers.kinds import KINDS


@dataclass(frozen=True, slots=True)
class Reference:
    """A paper: authors as BibTeX reads them, title, where it appeared, and the year."""

    author: str
    title: str
    venue: str
    year: int
    kind: str = "inproceedings"

    def bibtex(self, key: str) -> str:
        """Return its entry."""
        where = {"article": "journal", "misc": "howpublished"}.get(self.kind, "booktitle")
        parts = {"author": self.author, "title": f"{{{self.title}}}", where: self.venue, "year": str(self.year)}
        lines = [f"  {name} = {{{value}}}," for name, value in parts.items() if value]
        return "\n".join([f"@{self.kind}{{{key},", *lines, "}"])


GAVEL: Final = Reference(
    "Narayanan, Deepak and Santhanam, Keshav and Kazhamiaka, Fiodar and Phanishayee, Amar and Zaharia, Matei",
    "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", "USENIX OSDI", 2020,
)  # fmt: skip
REFERENCES: Final[dict[str, Reference]] = {
    "Lifka, JSSPP 1995": Reference(
        "Lifka, David A.", "The ANL/IBM SP Scheduling System", "Job Scheduling Strategies for Parallel Processing", 1995
    ),
    "Slurm's manual": Reference("{SchedMD}", "Slurm Workload Manager: Documentation", "SchedMD", 2025, "misc"),
    "Schrage, Oper. Res. 1968": Reference(
        "Schrage, Linus", "A Proof of the Optimality of the Shortest Remaining Processing Time Discipline",
        "Operations Research", 1968, "article",
    ),
    "Tiresias, NSDI 2019": Reference(
        "Gu, Juncheng and Chowdhury, Mosharaf and Shin, Kang G. and Zhu, Yibo and Jeon, Myeongjae and Qian, Junjie"
        " and Liu, Hongqiang and Guo, Chuanxiong",
        "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", "USENIX NSDI", 2019,
    ),
    "Helios, SC 2021": Reference(
        "Hu, Qinghao and Sun, Peng and Yan, Shengen and Wen, Yonggang and Zhang, Tianwei",
        "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", "SC", 2021,
    ),
    "Lucid, ASPLOS 2023": Reference(
        "Hu, Qinghao and Zhang, Meng and Sun, Peng and Wen, Yonggang and Zhang, Tianwei",
        "Lucid: A Non-Intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs",
        "ACM ASPLOS", 2023,
    ),
    "Qiao et al., OSDI 2021": Reference(
        "Qiao, Aurick and Choe, Sang Keun and Subramanya, Suhas Jayaram and Neiswanger, Willie and Ho, Qirong"
        " and Zhang, Hao and Ganger, Gregory R. and Xing, Eric P.",
        "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning",
        "USENIX OSDI", 2021,
    ),
    "Mohan et al., OSDI 2022": Reference(
        "Mohan, Jayashree and Phanishayee, Amar and Kulkarni, Janardhan and Chidambaram, Vijay",
        "Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters",
        "USENIX OSDI", 2022,
    ),
    "Jayaram Subramanya et al., SOSP 2023": Reference(
        "Jayaram Subramanya, Suhas and Arfeen, Daiyaan and Lin, Shouxu and Qiao, Aurick and Jia, Zhihao"
        " and Ganger, Gregory R.",
        "Sia: Heterogeneity-Aware, Goodput-Optimized ML-Cluster Scheduling", "ACM SOSP", 2023,
    ),
    "Zhao et al., SIGCOMM 2022": Reference(
        "Zhao, Yihao and Liu, Yuanqiang and Peng, Yanghua and Zhu, Yibo and Liu, Xuanzhe and Jin, Xin",
        "Multi-Resource Interleaving for Deep Learning Training", "ACM SIGCOMM", 2022,
    ),
    "Zheng et al., NSDI 2023": Reference(
        "Zheng, Pengfei and Pan, Rui and Khan, Tarannum and Venkataraman, Shivaram and Akella, Aditya",
        "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning",
        "USENIX NSDI", 2023,
    ),
    "Hwang et al., NSDI 2021": Reference(
        "Hwang, Changho and Kim, Taehyun and Kim, Sunghyun and Shin, Jinwoo and Park, KyoungSoo",
        "Elastic Resource Sharing for Distributed Deep Learning", "USENIX NSDI", 2021,
    ),
    "Grandl et al., SIGCOMM 2014": Reference(
        "Grandl, Robert and Ananthanarayanan, Ganesh and Kandula, Srikanth and Rao, Sriram and Akella, Aditya",
        "Multi-Resource Packing for Cluster Schedulers", "ACM SIGCOMM", 2014,
    ),
    "Ghodsi et al., NSDI 2011": Reference(
        "Ghodsi, Ali and Zaharia, Matei and Hindman, Benjamin and Konwinski, Andy and Shenker, Scott and Stoica, Ion",
        "Dominant Resource Fairness: Fair Allocation of Multiple Resource Types",
        "USENIX NSDI", 2011,
    ),
    "Peng et al., EuroSys 2018": Reference(
        "Peng, Yanghua and Bao, Yixin and Chen, Yangrui and Wu, Chuan and Guo, Chuanxiong",
        "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", "EuroSys", 2018,
    ),
    "Or et al., MLSys 2020": Reference(
        "Or, Andrew and Zhang, Haoyu and Freedman, Michael J.", "Resource Elasticity in Distributed Deep Learning",
        "MLSys", 2020,
    ),
    "Wang et al., VLDB 2024": Reference(
        "Wang, Qinlong and Lan, Tingfeng and Tang, Yinghao and Sang, Bo and Huang, Ziling and Du, Yiheng"
        " and Zhang, Haitao and Sha, Jian and Lu, Hui and Zhou, Yuanchun and Zhang, Ke and Tang, Mingjie",
        "DLRover-RM: Resource Optimization for Deep Recommendation Models Training in the Cloud",
        "Proceedings of the VLDB Endowment", 2024, "article",
    ),
    "Peng et al., TPDS 2021": Reference(
        "Peng, Yanghua and Bao, Yixin and Chen, Yangrui and Wu, Chuan and Meng, Chen and Lin, Wei",
        "DL2: A Deep Learning-Driven Scheduler for Deep Learning Clusters",
        "IEEE Transactions on Parallel and Distributed Systems", 2021, "article",
    ),
    "Gu et al., ASPLOS 2023": Reference(
        "Gu, Diandian and Zhao, Yihao and Zhong, Yinmin and Xiong, Yifan and Han, Zhenhua and Cheng, Peng and Yang, Fan"
        " and Huang, Gang and Jin, Xin and Liu, Xuanzhe",
        "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", "ASPLOS", 2023,
    ),
    "Berg et al., PEVA 2020": Reference(
        "Berg, Benjamin and Vesilo, Rein and Harchol-Balter, Mor",
        "heSRPT: Optimal Scheduling of Parallel Jobs with Known Sizes", "Performance Evaluation", 2020, "article",
    ),
    "Narayanan et al., OSDI 2020": GAVEL,
    "Gavel, OSDI 2020": GAVEL,
    "Themis, NSDI 2020": Reference(
        "Mahajan, Kshiteej and Balasubramanian, Arjun and Singhvi, Arjun and Venkataraman, Shivaram and Akella, Aditya"
        " and Phanishayee, Amar and Chawla, Shuchi",
        "Themis: Fair and Efficient GPU Cluster Scheduling", "USENIX NSDI", 2020,
    ),
    "AlloX, EuroSys 2020": Reference(
        "Le, Tan N. and Sun, Xiao and Chowdhury, Mosharaf and Liu, Zhenhua",
        "AlloX: Compute Allocation in Hybrid Clusters", "EuroSys", 2020,
    ),
    "Gandiva, OSDI 2018": Reference(
        "Xiao, Wencong and Bhardwaj, Romil and Ramjee, Ramachandran and Sivathanu, Muthian and Kwatra, Nipun"
        " and Han, Zhenhua and Patel, Pratyush and Peng, Xuan and Zhao, Hanyu and Zhang, Quanlu and Yang, Fan"
        " and Zhou, Lidong",
        "Gandiva: Introspective Cluster Scheduling for Deep Learning", "USENIX OSDI", 2018,
    ),
    "Chaudhary et al., EuroSys 2020": Reference(
        "Chaudhary, Shubham and Ramjee, Ramachandran and Sivathanu, Muthian and Kwatra, Nipun and Viswanatha, Srinidhi",
        "Balancing Efficiency and Fairness in Heterogeneous GPU Clusters for Deep Learning", "EuroSys", 2020,
    ),
    "Zhao and Wu, TNSM 2021": Reference(
        "Zhao, Xiaoyang and Wu, Chuan",
        "Large-Scale Machine Learning Cluster Scheduling via Multi-Agent Graph Reinforcement Learning",
        "IEEE Transactions on Network and Service Management", 2021, "article",
    ),
    "SCARL, IEEE Access 2019": Reference(
        "Cheong, Mukoe and Lee, Hyunsung and Yeom, Ikjun and Woo, Honguk",
        "SCARL: Attentive Reinforcement Learning-Based Scheduling in a Multi-Resource Heterogeneous Cluster",
        "IEEE Access", 2019, "article",
    ),
    "DeepSys, Internetware 2020": Reference(
        "Li, Qingping and Xu, Jingwei and Cao, Chun",
        "Scheduling Distributed Deep Learning Jobs in Heterogeneous Cluster with Placement Awareness",
        "Internetware", 2020,
    ),
}  # fmt: skip
"""Source, as `kinds.py` names it -> the paper."""


def sources_of(scheduler: str) -> list[str]:
    """Return the sources of a scheduler by its name, with or without options; none where it has no paper.

    >>> sources_of("las(quantum_s=60)"), sources_of("gavel_ftf_agnostic"), sources_of("mine")
    (['Tiresias, NSDI 2019'], ['Themis, NSDI 2020', 'Gavel, OSDI 2020'], [])
    """
    name = scheduler.partition("(")[0].strip().removesuffix("_agnostic")
    source = next((entries[name][1] for entries in KINDS.values() if name in entries), "")
    return [part for part in source.split("; ") if part]


def key_of(source: str) -> str:
    """Return the key of a source's entry.

    >>> key_of("Zhao and Wu, TNSM 2021"), key_of("Themis, NSDI 2020"), key_of("Gavel, OSDI 2020")
    ('zhao2021', 'mahajan2020', 'narayanan2020')
    """
    paper = REFERENCES[source]
    first = re.sub(r"[^a-z]", "", paper.author.split(",")[0].split(" ")[0].lower())
    return f"{first}{paper.year}"


def bibtex(schedulers: Iterable[str]) -> str:
    """Return the entries of the papers of some schedulers, each once, in their order."""
    entries = {key_of(source): REFERENCES[source] for name in schedulers for source in sources_of(name)}
    return "\n\n".join(paper.bibtex(key) for key, paper in entries.items()) + "\n" * bool(entries)
