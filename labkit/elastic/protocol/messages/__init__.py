"""Messages between the processes of a job: their types, and the encoder and decoder of all of them.

`orders` are sent by the controller to servers and workers, `reports` by these to the controller, `blocks` between
servers and workers, `launchers` between the controller and the launchers of other hosts, `clients` between the process
that started the job and the controller.

To add a message, write a frozen dataclass that derives from `Struct` (a report: from `MemberReport`) with a docstring,
enter it in the union of its module, and run mypy: it names each `match` that lacks a case. Increase `codec.VERSION`.
"""
