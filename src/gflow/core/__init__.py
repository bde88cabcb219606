"""The engine: a pure, deterministic state machine that makes every scheduling decision.

Theory of operation
-------------------
*Event, step, effects.* `engine.step(state, event) -> [Effect]` is the only entry point. An event
(`events`) is a fact with its time: a submission, an exit, a tick, a report about GPUs. Its handler
(`lifecycle/`) validates it, changes the `State` and appends effects (`effects`): save this job, start
this attempt, stop that one. A refused event raises before anything has changed. The daemon commits
the effects first and carries them out afterwards, so a crash between the two loses no decision.

*Job state machine.* Queued -> Running -> a final state, plus Hold (`transitions`). Anything finer is a
reason. Each start is an attempt with a number; an attempt starts at most once. A retry or a requeue is
a further attempt of the same job. A cancel or a time limit only sets `stopping`: the job is Running
until all of its processes have ended.

*Queue order.* Sort keys, compared one after the other and never added up: precedence (priority, then
non-preemptible before preemptible), fair-share band of the user (`state/fair_share`: GPU seconds with
exponential decay), estimated runtime times the square root of the GPUs (`state/runtime_estimates`:
finished jobs of the same kind, bounded by the time limit), arrival. Jobs that are interchangeable except
for arrival form an equivalence class; a scheduling round (`scheduling/scheduler`) examines only the first
job of each (`state/queue`).

*Backfill.* A job that does not fit does not block the queue. Once a job has waited for a multiple of its
own length it gets a start reservation: the earliest start that the estimated ends of the running
jobs allow. Later jobs are then backfilled as in EASY: only if they end before the reserved start or
leave the resources that the reserved job needs (`scheduling/backfill`). This bounds starvation.

*GPU reservations.* An operator keeps GPUs for one user for a time span (`state/reservations`). Before the
span, a job of another user starts there only if its time limit ends it in time. When the span begins,
jobs of other users on these GPUs are evicted (`scheduling/eviction`).

*Preemption.* A preemptible job is stopped and requeued when a job of higher precedence needs its GPUs
(`scheduling/preemption`). The victims are those that lose the least work.

*Dependencies.* A job waits for all of its parents, or for one of them (`state/dependencies`). When a parent
ends, its children become ready or, if they can no longer start, are cancelled (`lifecycle/finish`).

*Arrays.* One job record with the waiting tasks as ranges (`task_set`). A task becomes a job of its own
when it starts. The array is final when its last task is.

*Staged submissions.* A large submission arrives in parts that are durable and hidden, becomes visible in
one step, and enters the queue a few jobs per step (`lifecycle/staged_submit`). Bulk changes mark their
jobs with claims, and a claimed job does not start (`lifecycle/claims`).

*Other targets.* A job for a cluster waits here for its parents and its begin time, then is handed over.
With `--overflow` it is handed over only if it does not start here in time (`lifecycle/remote`).

*Determinism.* Time is an argument: every event carries the wall clock and the boot clock. No module here
reads a clock, a file, a socket or a random number. Equal states and equal events give equal effects.
The daemon, `gflow simulate` and the property tests therefore run the same code.

*Invariants.* `invariants.check` verifies the tables of `State` against the jobs, in O(jobs), and that
every job that can start has started. Tests call it after every step; `gflowd --paranoid` does too.

What belongs here: decisions and the data they need. What does not: I/O, texts for terminals, the wire
format. Start reading at `engine.step`.
"""
