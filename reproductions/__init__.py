"""Papers' own forms of what labkit has in a form of its own: to compare with, and to check claims.

labkit imports nothing from here. It finds each module by the entry-point group `labkit.reproductions`
(`labkit.core.outside.reproduction`), and the schedulers `deepsys` and `attention` by the group `labkit.schedulers`.
Of a module it uses, where it is there:

* `WEIGHTS`: the files of its weights (`labkit.core.weights.WeightsFiles`), and what reads one or refuses it;
* `compile_kernels()`: calls each compiled function once;
* of `dl2`: `Flat`, which is `dl2(published=True)`, and `lent_trainer`, for `labkit train-policy dl2 --published`;
* of `marl`: `PublishedMarl` and `published_trainer`, likewise;
* of `dl2_simulator`: the rules of `fifo`, `srtf`, `drf`, `tetris` and `optimus` with `published=True`
  (`labkit.schedulers.base.SimulatorRules`).

Modules that need torch are imported when something is trained.
"""
