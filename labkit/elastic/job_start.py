"""Start a job, or attach to one: check arguments, fill the folder, start its controller."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, Unpack

from labkit.core.errors import InputError
from labkit.elastic.arguments import (
    ANYWAY,
    EXACT,
    check_detached,
    check_seconds,
    check_sizes,
    check_variables,
    check_words,
    checked_clip,
    checked_counts,
    checked_folder,
    checked_update,
    load_state,
)
from labkit.elastic.checkpoint.resume import check_resume, stored_layout
from labkit.elastic.controller.client import AttachedController, controller_pid, is_over
from labkit.elastic.controller.controller_state import check_restarts
from labkit.elastic.controller.job_files import EVENTS, LEASES, LOCK, STATE, JobConfig
from labkit.elastic.controller.losses import STOP
from labkit.elastic.controller.replication import check_standby
from labkit.elastic.job import Job
from labkit.elastic.loading import Loading, StreamData
from labkit.elastic.models.sizes import whole
from labkit.elastic.process.credentials import Credentials, Secrets
from labkit.elastic.process.launchers import numeric_variables
from labkit.elastic.proof import REFUSE, buffer_shapes, moving_buffers, proved
from labkit.elastic.protocol.blocks import BLOCKS, Layout, Vector, layout, pack, small_blocks
from labkit.elastic.protocol.program import (
    FLOAT32,
    SPEC,
    UPDATE,
    Program,
    Spec,
    check_model,
    find_modules,
    module_paths,
    option_values,
)
from labkit.elastic.protocol.sites import (
    NOWHERE_ELSE,
    ROLES,
    JobPlacement,
    NetworkConfig,
    NetworkMode,
    Site,
    checked,
    checked_sites,
    of_role,
)
from labkit.elastic.schedules import Schedule
from labkit.elastic.server.block import Block
from labkit.elastic.server.optimizers import OwnUpdate
from labkit.elastic.server.torch_optimizers import TorchUpdates, check_schedulers, recipes
from labkit.elastic.server.update_rule import UpdateRule
from labkit.elastic.shards import check_batch
from labkit.elastic.transport import Scheme, TransportError, new_token, private_folder
from labkit.elastic.validation import Validation, checked_validation

if TYPE_CHECKING:
    from torch import nn

    from labkit.elastic.options import OptimizerOptions


def start(
    model: nn.Module,
    data: Any,
    loss: Callable[[nn.Module, Any], Any],
    *,
    steps: int,
    batch: int | None = None,
    shuffle: bool = True,
    loaders: int = 0,
    workers: int = 2,
    servers: int = 2,
    most_servers: int = 0,
    shards: int = 8,
    optimizer: Any = "sgd",
    schedule: Schedule | None = None,
    scheduler: Any = None,
    scheduler_every: int = 1,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    precision: str = FLOAT32,
    state: Mapping[str, Any] | None = None,
    per_shard: Sequence[str] = (),
    sync: bool = True,
    seed: int = 0,
    save_every: int = 0,
    validate: Validation | None = None,
    standby: bool = False,
    lease_s: float = 3.0,
    start_s: float = 300.0,
    patience_s: float = 300.0,
    restarts: int = 10,
    restarts_within_s: float = 600.0,
    devices: Sequence[str] = (),
    folder: Path | str | None = None,
    detached: bool = False,
    resume: str = EXACT,
    on_nan: str = STOP,
    network: str = "local",
    addresses: Sequence[str] = (),
    ports: Sequence[int] | None = None,
    sites: Sequence[Site] = (),
    place: Mapping[str, Sequence[int]] | None = None,
    loads_every_s: float = 0.0,
    measure_every_s: float = 0.0,
    partition: str = BLOCKS,
    proof: str = REFUSE,
    **options: Unpack[OptimizerOptions],
) -> Job:
    """Start a job and return at once.

    Parameters
    ----------
    model : Module
        Model to train; all parameters that need gradients must be float32.
    data : object
        Dataset: `len(data)` samples; `data.fetch(indices)` returns a batch, or `data[i]` a sample. Or a DataLoader: its
        dataset, batch size, collate_fn and sampler count, and `num_workers` as `loaders`.
    loss : callable
        Takes (model, batch), and `step` and `epoch` if it has arguments of these names. It returns a scalar tensor, the
        mean over the batch; or (sum, weight) where that is a sum of losses divided by a sum of weights, such as class
        weights or tokens that count. Metrics by name may come last, each a number or a scalar tensor, the mean over the
        batch; events `metrics` have them.
    steps : int
        Updates of the parameters, by all workers together.
    batch : int, optional
        Samples of an update, for any number of workers. Default: 64, or that of the DataLoader.
    shuffle : bool
        False: samples come in the order of the data; of a DataLoader its sampler decides.
    loaders : int
        Processes of each worker that load samples ahead of synchronous training; 0: loading and computing take turns.
    workers, servers : int
        Numbers at the beginning.
    most_servers : int
        Servers that the job may get later, each with a block of parameters at least. 0: twice those of the beginning,
        and 4 at least; a model of 16 MB or more has blocks for 64 in any case.
    shards : int
        V: a batch of synchronous training is cut into V logical shards, whose gradients are summed in a fixed order.
        A divisor of `batch`.
    optimizer : str, Optimizer, callable, sequence of these, or OwnUpdate
        sgd, momentum or adam; its options (lr, ...) by name, see `labkit.elastic.server.optimizers`. Or an optimizer of
        torch over the model's parameters, or a function of the model that returns one: servers step it on their
        blocks, which then never cut a parameter. Of several, update k is made by number k modulo how many there are.
        Or an update of one's own, and lr.
    schedule : callable, optional
        From the number of an update, from 0, to a factor of lr: see `labkit.elastic.schedules`.
    scheduler : LRScheduler, callable or sequence of these, optional
        A scheduler of torch of that optimizer, or a function of the optimizer that returns one; one for each optimizer.
    scheduler_every : int
        Updates between two calls of its `step`.
    clip_value : float, optional
        Limit of each element of the mean gradient, as `torch.nn.utils.clip_grad_value_`.
    clip_norm : float, optional
        Limit of the norm of the whole gradient, as `torch.nn.utils.clip_grad_norm_`: servers wait for each other once a
        step. In asynchronous training, of the gradient of each minibatch.
    precision : str
        "float32"; or "bf16" or "fp16": forward pass and loss under `torch.autocast`. Parameters and updates stay
        float32. With "fp16" each shard's loss is scaled for its backward pass, and its gradients are scaled back.
    state : mapping, optional
        A `state_dict`, loaded into the model first; names and shapes must be those of the model.
    per_shard : sequence of str
        Buffers that belong to the samples of a logical shard, such as the state of a recurrent network: each shard
        has its own. Other buffers that the forward pass changes are averaged over the shards.
    sync : bool
        True: all workers make each update together. False: each makes its own updates, with samples that it leases.
    seed : int
        Seed of the order of samples, and of what the model draws.
    save_every : int
        Updates between two checkpoints; 0: only the last state is saved.
    validate : Validation, optional
        Samples and metrics by which the model is measured every so many steps, early stop, and the best state:
        `Result.best`. States are saved for it, so `save_every` is that of the validation by default.
    standby : bool
        Whether each block has a replica on a second server, which takes over if the first is killed: no step is lost.
        It takes twice the memory on servers and twice the pushes; synchronous training only.
    lease_s : float
        Seconds without an answer after which a process counts as dead; most other timeouts derive from it.
    start_s : float
        Seconds that a process may take to start. After that a request to scale is dropped, a replacement is replaced,
        and for the first processes of a job, the job ends with their names.
    patience_s : float
        Seconds that a worker may take for the gradient of one logical shard (of one minibatch if `sync` is False).
        After that another worker replaces it; the second time at the same shard the job ends, and names the shard.
    restarts, restarts_within_s : int, float
        The job fails when more than `restarts` processes died within that many seconds without progress of the
        training (docs/elastic.md, When a job is given up), or when its controller died as often.
    devices : sequence of str
        Devices of the workers, "cpu" or "cuda:0": worker i has device i modulo their number.
    folder : Path, optional
        Folder for events, logs and checkpoints; training goes on from its newest good checkpoint. Without one, a
        temporary folder, which is removed at the end unless the job failed.
    detached : bool
        Whether the job goes on when the process ends that started it; `labkit.elastic.attach` finds it by its folder,
        which must be given. A controller that dies then is not replaced, and nothing validates.
    resume : str
        "exact": refuse to go on from a checkpoint with another seed, batch, number of shards or dataset, so that
        training ends with the bits of one that was never interrupted; "anyway": go on with other samples (synchronous
        training only), and write the differences into an event `differs`.
    on_nan : str
        "stop": a loss that is NaN or infinite ends the job before its gradient is used, and no state with such numbers
        is saved, so the newest checkpoint is finite. "continue": the loss is recorded, and training goes on.
    network, addresses, ports
        Transport between processes: "local", "tls" or "tcp"; addresses to which servers listen in turn, and ports
        (docs/elastic.md, Between hosts).
    sites : sequence of Site
        Device groups that may hold members (docs/elastic.md, Over several hosts); the first is on this machine.
    place : mapping, optional
        (workers, servers) by name of the site, instead of `workers` and `servers`; without it the first site has all.
    loads_every_s : float
        Seconds between two events `served`, with the gradient bytes that a server received; 0: none.
    measure_every_s : float
        Seconds between two events `used`, with cores and GB of each process; 0: none. `Job.status` has them anyway.
    partition : str
        Blocks of each server at the beginning: "blocks", even by bytes; or "tensor", whole parameters in turn, as
        TensorFlow places them: one server may then have most of the load, until `Job.balance`.
    proof : str
        What a program does to the job whose gradients pickling or sharding changes, which about one step shows, in a
        copy of this process: "refuse"; "tell": an event `told` has it, as it has what was checked; "off": not looked.

    Raises
    ------
    InputError
        If an argument is invalid, or a job runs in the folder; nothing has been started then.
    """
    loading = Loading.of(data, batch=batch, shuffle=shuffle, loaders=whole("loaders", loaders), default=64)
    _refuse_stream(loading, sync=sync)
    steps, batch, workers, servers, most_servers, shards, seed, save_every = checked_counts(
        steps=steps, batch=loading.batch, workers=workers, servers=servers, most_servers=most_servers, shards=shards,
        seed=seed, save_every=save_every,
    )  # fmt: skip
    check_seconds(
        lease_s=lease_s, start_s=start_s, patience_s=patience_s, loads_every_s=loads_every_s,
        measure_every_s=measure_every_s,
    )  # fmt: skip
    check_words(on_nan=on_nan, resume=resume, partition=partition, precision=precision, proof=proof)
    program = _with_state(Program(model, loading.data, loss), state)
    rule = _rule(optimizer, program, schedule, clip_value=clip_value, torch=(scheduler, scheduler_every), n=steps)
    optimizer, numbers = checked_update(optimizer, options, rule=rule, n_steps=steps, arguments=_arguments())
    folder, places = checked_folder(folder), checked_sites(sites, network=network, addresses=addresses, devices=devices)
    reach = _checked_network(places, network=network, addresses=addresses, ports=ports)
    seats = _checked_seats(places, place, servers=servers, workers=workers)
    servers, workers = (sum(of_role(seats, role).values()) for role in ROLES)
    _check_end(restarts, restarts_within_s, detached=detached, folder=folder, validation=validate)
    n_blocks, norm = small_blocks(servers, most_servers=most_servers), checked_clip(clip_norm)
    trial = Spec((), (), "", {}, batch, shards if sync else 1, steps, seed, precision=precision, patience_s=patience_s)
    cut = _checked_cut(program, trial, folder, n_blocks=n_blocks, per_shard=per_shard, whole=bool(norm or rule.torch))
    check_sizes(cut, steps=steps, save_every=save_every, servers=servers, workers=workers)
    save_every = checked_validation(validate, program, save_every=save_every, precision=precision)
    _check_servers(reach, places, seats, servers=servers, sync=sync, standby=standby)
    spec = Spec(
        params=tuple((p.name, p.first, p.shape) for p in cut.params), extents=cut.extents, optimizer=optimizer,
        options=option_values(numbers), batch=batch, n_shards=shards, n_steps=steps, seed=seed, lease_s=lease_s,
        start_s=start_s, patience_s=patience_s, devices=tuple(devices), sync=sync, n_samples=len(loading.data),
        reach=reach, sites=tuple(places), on_nan=on_nan, paths=tuple(module_paths()), partition=partition,
        loads_every_s=float(loads_every_s), measure_every_s=float(measure_every_s), has_rule=bool(rule),
        precision=precision, n_buffers=cut.n_buffers, per_shard=tuple(per_shard), shuffle=loading.shuffle,
        loaders=loading.loaders, clip_norm=norm, variables=tuple(numeric_variables(os.environ).items()),
        **({} if network == NetworkMode.LOCAL else {"scheme": Scheme(network)}),
    )  # fmt: skip
    config = JobConfig(
        place=dict(seats), save_every=save_every, standby=standby, parent=0 if detached else os.getpid(),
        restarts=restarts, restarts_within_s=restarts_within_s, proof=proof,
    )  # fmt: skip
    return _started(folder, program, rule, spec, config, reach=reach, anyway=resume == ANYWAY, validation=validate)


def _started(
    folder: Path | None,
    program: Program,
    rule: UpdateRule,
    spec: Spec,
    config: JobConfig,
    *,
    reach: NetworkConfig,
    anyway: bool,
    validation: Validation | None,
) -> Job:
    check_variables()
    secrets = Secrets.of(reach)
    with job_folder(folder) as home, claimed(home) as lock:
        fill(home, program, rule, spec, config, anyway=anyway)
        Credentials(home, reach=reach, secrets=secrets).close()  # removes those of an earlier job in this folder
        return Job(home, program, keep=folder is not None, secrets=secrets, validation=validation, lock=lock)


def _rule(
    optimizer: Any, program: Program, schedule: Any, *, clip_value: Any, torch: tuple[Any, Any], n: int
) -> UpdateRule:  # fmt: skip
    """Return what servers do beside a named optimizer's `n` updates; these, and its schedulers, if of torch."""
    own, (scheduler, every) = optimizer if isinstance(optimizer, OwnUpdate) else None, torch
    if isinstance(optimizer, str) or own is not None:
        if scheduler is not None:
            raise InputError("scheduler= goes with an optimizer of torch; expected schedule=, a function of the step.")
        return UpdateRule(own, schedule, clip_value)
    check_model(program.model, pickled=program.is_pickled)
    every = whole("scheduler_every", every, least=1)
    made = recipes(optimizer, program.model, scheduler=scheduler, every=every, schedule=schedule)
    check_schedulers(made, n_steps=n)
    return UpdateRule(None, schedule, clip_value, made)


def _check_end(
    restarts: Any, within_s: Any, *, detached: Any, folder: Path | None, validation: Validation | None
) -> None:  # fmt: skip
    """Raise InputError for impossible numbers of deaths, or a job that cannot outlive its starter."""
    check_restarts(restarts, within_s)
    check_detached(detached, folder=folder, validate=validation)


def _arguments() -> Iterable[str]:
    return signature(start).parameters


def _refuse_stream(loading: Loading, *, sync: bool) -> None:
    """Raise InputError if asynchronous training is to lease samples of an IterableDataset."""
    if isinstance(loading.data, StreamData) and not sync:
        raise InputError(
            "sync=False with an IterableDataset, which is read in order; expected samples by number, or sync."
        )


def _checked_cut(
    program: Program, trial: Spec, folder: Path | None, *, n_blocks: int, per_shard: Sequence[str], whole: bool
) -> Layout:  # fmt: skip
    """Return parameters, buffers and blocks of a model; InputError if it cannot train, or has no such batch."""
    program.check()
    check_batch(len(program.data), batch=trial.batch, n_shards=trial.n_shards)
    buffers = buffer_shapes(program.model, moving_buffers(program, trial), per_shard=per_shard, n_shards=trial.n_shards)
    cut = layout(program.model, n_blocks=n_blocks, whole=whole, buffers=buffers)
    return cut if folder is None else _checked_layout(folder, cut)


def _checked_layout(folder: Path, cut: Layout) -> Layout:
    """Return the cut of a folder's checkpoints, which must not cut a parameter where `cut` does not."""
    kept = stored_layout(folder, cut)
    if kept.cuts_a_parameter() and not cut.cuts_a_parameter():
        raise InputError(
            f"the checkpoints of {folder} cut parameters into blocks, and clip_norm needs whole ones; give another "
            "folder."
        )
    return kept


def _checked_network(
    sites: Sequence[Site], *, network: str, addresses: Sequence[str], ports: Sequence[int] | None
) -> NetworkConfig:
    configured = addresses or [site.address for site in sites if site.address]
    return NetworkConfig.checked(network, configured, ports, job=f"job-{new_token().hex()[:12]}")


def _checked_seats(
    sites: Sequence[Site], place: Mapping[str, Sequence[int]] | None, *, servers: int, workers: int
) -> JobPlacement:
    """Return workers and servers of each site at the beginning; a job without sites has them all on one."""
    if not sites and place is not None:
        raise InputError(f"place {dict(place)} of a job without sites; name its sites, or leave it out.")
    if place is None:
        return {(sites[0] if sites else NOWHERE_ELSE).name: (workers, servers)}
    return checked(place, sites={site.name: site.host for site in sites}, lost=())


def _with_state(program: Program, state: Any) -> Program:
    if state is not None:
        load_state(program.model, state)
    return program


def _check_servers(
    reach: NetworkConfig, sites: Sequence[Site], seats: JobPlacement, *, servers: int, sync: bool, standby: bool
) -> None:
    """Raise InputError unless there are enough servers for a standby, and addresses and ports for all of them."""
    if standby:
        check_standby(servers=servers, sync=sync)
    _check_free(reach, sites, seats, servers=servers)


def _check_free(reach: NetworkConfig, sites: Sequence[Site], seats: JobPlacement, *, servers: int) -> None:
    """Raise AddressError unless this machine has the addresses and free ports that its members need."""
    if not sites:
        reach.check_free(servers=servers)
        return
    at: dict[str, int] = {}
    for site in sites:
        if site.host == sites[0].host:
            at[site.address] = at.get(site.address, 0) + seats.get(site.name, (0, 0))[1]
    for address, n in at.items():
        replace(reach, hosts=(address,)).check_free(servers=n, controller=address == sites[0].address)


LARGE_BYTES: Final = 300 << 20
"""Size of a pickled program from which on it is reported."""


class RunningError(InputError):
    """A job still runs in the folder that was given to another job."""


@contextlib.contextmanager
def job_folder(folder: Path | None) -> Iterator[Path]:
    """Make the folder of a job; if the block fails, a folder that was made here is removed.

    Raise InputError if it cannot be made.

    Parameters
    ----------
    folder : Path or None
        The folder; None: a new one in the system's folder of temporary files.
    """
    is_new = folder is None or not folder.exists()
    try:
        home = private_folder(Path(tempfile.mkdtemp(prefix="labkit-job-")) if folder is None else folder)
    except TransportError:
        raise
    except OSError as error:
        raise InputError(f"folder {folder or tempfile.gettempdir()} cannot be made: {error.strerror}.") from None
    try:
        yield home
    except BaseException:
        if is_new:
            shutil.rmtree(home, ignore_errors=True)
        raise


@contextlib.contextmanager
def claimed(home: Path) -> Iterator[TextIO]:
    """Claim the folder of a job; yield the lock, which its controller is to inherit: there is no moment without one.

    Raise RunningError if a job runs in the folder, or is about to.
    """
    with (home / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"a job is running in {home}; wait until it is over, or give another folder."
            raise RunningError(message) from None
        yield lock


def fill(home: Path, program: Program, rule: UpdateRule, spec: Spec, config: JobConfig, *, anyway: bool) -> None:
    """Write program, rule of updates, spec, configuration and first checkpoint into the folder of a job, claimed here.

    A job that is refused leaves the folder as it was. Raise InputError if a checkpoint in the folder is of another
    training, unless `anyway`; or the program would train another model in its processes.
    """
    differs = check_resume(home, spec, anyway=anyway)
    if rule.torch is not None and (home / UPDATE).exists() and spec.checkpoints(home).steps() not in ([], [0]):
        _check_before(home, rule.torch)
    notices: list[str] = []

    def check(pickled: Path) -> None:
        notices.extend(_about_size(pickled.stat().st_size))
        notices.append(proved(program, pickled, spec, how=config.proof))

    program.save(home, before=check)
    if rule:
        rule.save(home)
    _set_aside(home)
    spec.save(home)
    _save_first(spec, home, pack(program.model, spec.layout), rule)
    replace(config, differs=differs, notices=notices).save(home)


def _check_before(home: Path, updates: TorchUpdates) -> None:
    """Raise InputError if optimizers come with more updates than they had where the training of a folder began."""
    earlier = UpdateRule.load(home).torch
    now, then = (0 if each is None else each.n_before for each in (updates, earlier))
    if now != then:
        raise InputError(
            f"the optimizer has made {now} updates before the job, and {then} where the training in {home} began; its "
            "checkpoints have the state of the optimizer. Give it as it was there, or another folder."
        )


def _about_size(n_bytes: int) -> list[str]:
    """Return a line about a large program, and print it: each worker loads all of it."""
    if n_bytes < LARGE_BYTES:
        return []
    message = (
        f"model, data and loss take {n_bytes / 1e9:.1f} GB: the job's folder and each worker have a copy. An array "
        "mapped from a file (np.memmap, np.load(mmap_mode='r')) is sent as its path"
    )
    print(f"labkit: {message}.", file=sys.stderr, flush=True)
    return [message]


def _set_aside(folder: Path) -> None:
    """Remove the state of an earlier job in this folder, and rename its events; its checkpoints stay."""
    (folder / STATE).unlink(missing_ok=True)
    (folder / LEASES).unlink(missing_ok=True)
    if (folder / EVENTS).exists():
        n = sum(1 for _ in folder.glob(f"*-{EVENTS}"))
        (folder / EVENTS).rename(folder / f"{n}-{EVENTS}")


def _save_first(spec: Spec, folder: Path, vector: Vector, rule: UpdateRule) -> None:
    """Write the checkpoint of step 0, unless the folder has a checkpoint of a later step."""
    checkpoints = spec.checkpoints(folder)
    if checkpoints.steps() == [0]:  # of a job that has not trained: the new model replaces it
        checkpoints.set_aside(0)
    if checkpoints.steps():
        return
    cut = spec.layout
    blocks = [
        Block(number=number, params=part, state=checkpoints.optimizer.init(len(part)))
        for number, part in enumerate(cut.blocks(vector))
    ]
    if rule.torch is not None:
        for block, (first, _) in zip(blocks, cut.extents, strict=True):
            rule.torch.first_state(cut.of_block(block.number), first, block.state)
    checkpoints.save(0, {"launcher": blocks})


class AttachedJob(Job):
    """A job that another process has started: all that `Job` does, but leaving its `with` block does not end it."""

    def _attended(self) -> AttachedController:
        return AttachedController(self.folder, lease_s=self._spec.lease_s, ended=self._ended)

    def host_home(self, host: str) -> bytes:
        """Raise InputError: the key of the job is in the process that started it."""
        raise InputError(f"the files of host '{host}' have a key that only the process has which started the job.")

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """Close the connection; the job goes on."""
        self._client.close()


def attach(folder: Path | str) -> Job:
    """Return the job in a folder, of this user and on this machine, that another process has started.

    It can be watched, scaled, stopped and waited for from here, too. Start it with `start(..., detached=True)` if it is
    to outlive the process that starts it, such as a notebook's kernel. A job that is over has its result.

    Parameters
    ----------
    folder : Path or str
        That of `start(folder=...)`.

    Raises
    ------
    InputError
        If no job was started there, or the job ended without a word.
    """
    home = checked_folder(folder)
    if home is None or not (home / SPEC).exists():
        raise InputError(f"no job was started in {folder}; expected the folder of start(folder=...).")
    if not controller_pid(home) and not is_over(home):
        raise InputError(
            f"the job in {home} has no controller: it ended with the process that started it (detached=True keeps it "
            "running). start(..., folder=...) continues from its newest checkpoint."
        )
    find_modules(Spec.load(home).paths)
    program: Any = Program.load(home)
    return AttachedJob(home, program, keep=True)
