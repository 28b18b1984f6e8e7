"""The controller of a job: a pure state machine, and the process that runs it.

The state machine: `state_machine` (the entry, `Controller`) is composed of parts that share `controller_state` and
`command_buffer`. Scaling: `scaling_requests`, `scaling`, `barrier`. Blocks: `block_ownership`, `replication`, with the
pure functions of `block_assignment` and `replica_placement`. Training: `era_start`, `progress`, `shard_assignment`,
`shard_balance`, `checkpoint_schedule`, `data_leases`, `minibatches`. Members: `joining`, `member_loss`, `host_loss`,
`deaths`, `placement`. Ends and takeovers: `outcome`, `takeover`. Reports: `report_handlers`, `report_columns`.

The process: `process` (the entry, `python -m`) is composed of parts that share `event_loop`: `connections`,
`member_processes`, `remote_hosts`, `checkpoint_keeper`, `resource_use`, `client_requests`; `job_files` has its files.
`client` is the other end of a client's connection, and `losses` is shared with workers.

To handle a new report of a member, give the part that owns the affected state a method `on_...`, and call it in a case
of `report_handlers`. A new part names the parts that it calls as its fields, and is constructed after them.
"""
