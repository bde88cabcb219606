"""Signs of slow and stuck runs: each function returns the figures that it rests on, or None.

Percentages of CPU are of one core. Shares of stack samples are from 0 to 1.
"""

from __future__ import annotations

from statistics import mean
from typing import NamedTuple

from gflow.diagnosis.rules.rule import Confidence
from gflow.diagnosis.slow_runs.run_facts import GpuUse, ProcessUse, RunFacts

# Utilisation in percent from which a GPU counts as saturated, and below which it is underused or idle.
SATURATED = 85
UNDERUSED = 60
IDLE = 25
# A GPU that is busy and takes less than this part of its power runs small or waiting kernels.
LOW_POWER = 0.3
# Percent of one core: a thread that is busy, and a job that does nothing.
BUSY_CPU = 70
NO_CPU = 3
# Parts of the stack samples.
MUCH = 0.3
SOME = 0.2
# A step is late after this many usual steps, and never before so many seconds.
LATE_STEPS = 10
LATE_S = 60
# Seconds without CPU, GPU and log after which a job counts as stuck.
QUIET_S = 60
LONG_QUIET_S = 600
# Output and steps this young show that a job gets on; output at its start does not.
RECENT_S = 20
# Samples of a GPU that a judgement needs.
FEW_SAMPLES = 5
SMALL_MEMORY = 0.25
MUCH_SWAP_MIB = 256
SWAP_FAULTS_S = 50
MUCH_PCIE_MB_S = 8000
# The clock by its maximum at the power limit that the card is delivered with. Dense matrix products reach it.
LOW_CLOCK = 0.6

# States of a process, as the kernel spells them.
STATES = {"S": "sleeps", "D": "waits uninterruptibly", "R": "runs", "T": "is stopped", "t": "is traced"}
LONGEST_COMMAND = 120


class Sign(NamedTuple):
    """How sure it is, the figures, values for the text of the rule, and the activity whose line is shown."""

    confidence: Confidence
    figures: tuple[str, ...]
    names: dict[str, str] = {}
    activity: str = ""


def is_saturated(facts: RunFacts) -> bool:
    """Whether the GPUs have as much work as they can do, as far as is known."""
    power = facts.power_share
    return facts.busy is not None and facts.busy >= SATURATED and (power is None or power >= LOW_POWER)


def may_wait(facts: RunFacts) -> bool:
    """Whether the job has GPUs that may wait for something."""
    return facts.gpu_count > 0 and not is_saturated(facts)


def has_gpu_idle(facts: RunFacts) -> bool:
    """Whether no GPU does anything; also if there is none, or nothing is known about them."""
    return all(gpu.busy is None or gpu.busy < 1 for gpu in facts.gpus)


# ------------------------------------------------------------ figures


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def gpu_figure(facts: RunFacts) -> tuple[str, ...]:
    if facts.busy is None:
        return ()
    share = facts.power_share
    power = f", {percent(share)} of its power" if share is not None else ""
    return (f"GPU {facts.busy:.0f} % busy{power}",)


def cpu_figure(one: ProcessUse | None) -> tuple[str, ...]:
    if one is None:
        return ()
    return (f"thread {one.busiest} of process {one.pid} takes {one.busiest_cpu:.0f} % of a CPU",)


def stack_figure(facts: RunFacts, doing: str, *activities: str) -> tuple[str, ...]:
    share = facts.stack.share(*activities)
    return (f"{percent(share)} of {facts.stack.samples} stack samples {doing}",) if share >= 0.01 else ()


def memory_figure(facts: RunFacts) -> tuple[str, ...]:
    share = facts.memory_share
    return () if share is None else (f"{percent(share)} of the GPU's memory in use",)


def spell_s(seconds: float) -> str:
    """A duration: `0.25 s`, `40 s`, `12 min`, `3 h`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


# ------------------------------------------------------------ stuck


def find_stopped(facts: RunFacts) -> Sign | None:
    """The program is stopped; the shell that waits for it is not. Of several ranks one is enough."""
    own = [one for one in facts.processes if one.role != "worker" and not _waits_for_child(one)]
    program = [one for one in own if one.role == "main"] or own
    stopped = [one for one in program if one.is_stopped]
    if not stopped or (len(stopped) < len(program) and facts.ranks < 2):
        return None
    pids = " ".join([str(one.pid) for one in facts.processes if one.is_stopped][:32])
    sure = Confidence.CERTAIN if len(stopped) == len(program) else Confidence.LIKELY
    return Sign(sure, (f"processes in state T: {pids}",), {"pids": pids})


def _waits_for_child(one: ProcessUse) -> bool:
    """Whether it only waits for its children, as a shell does. Some kernels hide what a process waits in."""
    return one.state == "S" and not one.cpu and one.waits_in in ("do_wait", "")


def find_hung_io(facts: RunFacts) -> Sign | None:
    hung = [one for one in facts.processes if one.io_wait >= 0.9]
    if not hung or facts.cpu >= NO_CPU or any(one.read_mb_s or one.written_mb_s for one in facts.processes):
        return None
    return Sign(Confidence.LIKELY, (_io_figure(hung[0]), f"CPU {facts.cpu:.0f} %", "no byte read or written"))


def find_hung_communication(facts: RunFacts) -> Sign | None:
    """NCCL kernels that wait for a missing rank keep a GPU busy at little power."""
    power, late = facts.power_share, _late_figure(facts)
    is_spinning = (facts.busy or 0) >= SATURATED and power is not None and power < LOW_POWER
    is_waiting = facts.stack.share("communication") >= 0.9 and facts.cpu < NO_CPU * 10
    if facts.ranks < 2 or not (is_spinning or is_waiting) or not late:
        return None
    figures = (*late, *gpu_figure(facts), *stack_figure(facts, "wait for other ranks", "communication"))
    return Sign(Confidence.LIKELY, figures, activity="communication")


def find_stalled(facts: RunFacts) -> Sign | None:
    """Steps are reported, and none for long, while the GPUs do nothing."""
    late = _late_figure(facts) if facts.steps else ()
    is_blind = facts.busy is None and (facts.cpu >= BUSY_CPU or not facts.has_processes)
    if not late or not has_gpu_idle(facts) or is_blind:
        return None
    is_quiet = facts.has_processes and facts.cpu < NO_CPU
    figures = (*late, *gpu_figure(facts), *_work_figure(facts), *_wait_figure(facts))
    return Sign(Confidence.LIKELY if is_quiet else Confidence.POSSIBLE, figures, activity=most_sampled(facts))


def quiet_s(facts: RunFacts) -> float:
    """Seconds without output; since the start, if there is none."""
    return facts.age_s if facts.log_age_s is None else min(facts.log_age_s, facts.age_s)


def is_inactive(facts: RunFacts) -> bool:
    """Whether its processes, which can be observed, take no CPU and read and write nothing."""
    is_moving = facts.cpu >= NO_CPU or any(one.read_mb_s or one.written_mb_s for one in facts.processes)
    return facts.has_processes and not facts.has_container and not is_moving


def progress_figure(facts: RunFacts) -> str:
    """The last step or output, if it is recent; else empty."""
    steps = facts.steps
    if steps and (steps.now_s or steps.age_s < max(RECENT_S, 2 * (steps.earlier_s or steps.usual_s or 0))):
        return f"it makes progress: last step {spell_s(steps.age_s)} ago"
    age = facts.log_age_s
    if not facts.has_processes or age is None or age >= RECENT_S or facts.age_s - age < RECENT_S:
        return ""
    return f"it writes output: last line {spell_s(age)} ago"


def find_quiet(facts: RunFacts) -> Sign | None:
    """No CPU, no GPU, no log: without reports of progress this is all that shows a stuck job."""
    silent_s = quiet_s(facts)
    if not is_inactive(facts) or not has_gpu_idle(facts) or silent_s < QUIET_S:
        return None
    if facts.steps and facts.steps.age_s < QUIET_S:
        return None
    silent = f"nothing new in the log for {spell_s(silent_s)}"
    figures = (*_work_figure(facts), *gpu_figure(facts), silent, *_wait_figure(facts))
    sure = Confidence.LIKELY if silent_s >= LONG_QUIET_S else Confidence.POSSIBLE
    return Sign(sure, figures, activity=most_sampled(facts))


def _late_figure(facts: RunFacts) -> tuple[str, ...]:
    """The age of the last step, if it is late; without steps, that of the log."""
    steps = facts.steps
    if steps is None:
        age = facts.log_age_s
        return (f"nothing new in the log for {spell_s(age)}",) if age and age >= LONG_QUIET_S else ()
    usual = steps.earlier_s or steps.usual_s or 0.0
    if steps.age_s < max(LATE_S, LATE_STEPS * usual):
        return ()
    times = f", a step takes {spell_s(usual)} on average" if usual else ""
    return (f"step {steps.step} was {spell_s(steps.age_s)} ago{times}",)


def _work_figure(facts: RunFacts) -> tuple[str, ...]:
    return (f"CPU {facts.cpu:.0f} % in {spell_s(facts.seen_s)}",) if facts.has_processes else ()


def _wait_figure(facts: RunFacts) -> tuple[str, ...]:
    """Without stack samples: the command line of a process, its state, and what it waits in.

    A process that only waits for its children, such as a shell, says less than they do.
    """
    known = [one for one in facts.processes if one.command]
    one = next((one for one in known if one.waits_in != "do_wait" and one.role != "other"), None)
    one = one or next((one for one in known if one.waits_in != "do_wait"), facts.main)
    if facts.stack.samples or one is None or not one.command:
        return ()
    command = one.command if len(one.command) <= LONGEST_COMMAND else f"{one.command[:LONGEST_COMMAND]}…"
    where = f" in {one.waits_in}" if one.waits_in else ""
    return (f"process {one.pid} {STATES.get(one.state, f'is in state {one.state}')}{where}: {command}",)


def most_sampled(facts: RunFacts) -> str:
    """The activity with the most samples; empty: there are none."""
    return max(facts.stack.shares, key=lambda name: facts.stack.shares[name], default="")


# ------------------------------------------------------------ slow: the host


def find_swapping(facts: RunFacts) -> Sign | None:
    swap = sum(one.swap_mib for one in facts.processes)
    faults = sum(one.major_faults_s for one in facts.processes)
    if swap < MUCH_SWAP_MIB or faults < SWAP_FAULTS_S:
        return None
    figures = (f"{swap} MiB of its memory is swapped out", f"{faults:.0f} pages per second are read back")
    return Sign(Confidence.LIKELY, figures)


def find_io_wait(facts: RunFacts) -> Sign | None:
    waiting = [one for one in facts.processes if one.io_wait >= 0.5]
    if not waiting or is_saturated(facts):
        return None
    read = sum(one.read_mb_s for one in facts.processes)
    figures = (_io_figure(waiting[0]), f"{read:.0f} MB/s read from storage", *gpu_figure(facts))
    return Sign(Confidence.LIKELY if may_wait(facts) else Confidence.POSSIBLE, figures)


def _io_figure(one: ProcessUse) -> str:
    where = f" in {one.waits_in}" if one.waits_in else ""
    return f"process {one.pid} waits uninterruptibly (state D{where}) in {percent(one.io_wait)} of the looks"


def find_cpu_contention(facts: RunFacts) -> Sign | None:
    """Threads that could run and have no CPU."""
    waits = [one for one in facts.processes if one.cpu_wait >= MUCH]
    if not waits or is_saturated(facts):
        return None
    worst = max(waits, key=lambda one: one.cpu_wait)
    figures = (
        f"process {worst.pid} could run and has no CPU {percent(worst.cpu_wait)} of the time",
        f"the job may use {facts.cpus} CPUs and takes {facts.cpu / 100:.1f}",
    )
    return Sign(Confidence.LIKELY, figures, {"cpus": str(facts.cpus)})


# ------------------------------------------------------------ slow: the GPUs


def find_other_process(facts: RunFacts) -> Sign | None:
    shared = [gpu for gpu in facts.gpus if gpu.others]
    if not shared:
        return None
    figures = tuple(f"GPU {gpu.number}: {', '.join(gpu.others[:3])}" for gpu in shared[:4])
    return Sign(Confidence.LIKELY, (*figures, *gpu_figure(facts)))


def find_heat(facts: RunFacts) -> Sign | None:
    return _throttle_sign(facts, "heat")


def find_hardware_slowdown(facts: RunFacts) -> Sign | None:
    return _throttle_sign(facts, "hardware slowdown") or _throttle_sign(facts, "the power supply")


def find_power_limit(facts: RunFacts) -> Sign | None:
    """A power limit below the usual one, or one that takes much of the clock."""
    for gpu in facts.gpus:
        lowered = gpu.power_limit_w and gpu.power_usual_w and gpu.power_limit_w < 0.95 * gpu.power_usual_w
        if _slowed_share(gpu, "its power limit") >= 0.5 and (lowered or _clock_share(gpu) < LOW_CLOCK):
            usual = f" (usually {gpu.power_usual_w:.0f} W)" if lowered else ""
            limit = f"its limit is {gpu.power_limit_w:.0f} W{usual}" if gpu.power_limit_w else ""
            return Sign(Confidence.LIKELY, tuple(filter(None, (*_clock_figure(gpu), limit))))
    return None


def find_power_cap(facts: RunFacts) -> Sign | None:
    """The usual power limit, which dense matrix products reach: as fast as the card can be."""
    if find_power_limit(facts):
        return None
    for gpu in facts.gpus:
        if _slowed_share(gpu, "its power limit") >= 0.5 and _clock_share(gpu) < 0.97:
            return Sign(Confidence.CERTAIN, _clock_figure(gpu))
    return None


def _throttle_sign(facts: RunFacts, reason: str) -> Sign | None:
    for gpu in facts.gpus:
        if _slowed_share(gpu, reason) >= 0.5:
            return Sign(Confidence.LIKELY, _clock_figure(gpu), {"gpu": str(gpu.number)})
    return None


def _slowed_share(gpu: GpuUse, reason: str) -> float:
    return max((share for name, share in gpu.slowed if name.startswith(reason)), default=0.0)


def _clock_share(gpu: GpuUse) -> float:
    return gpu.clock_mhz / gpu.clock_most_mhz if gpu.clock_mhz and gpu.clock_most_mhz else 1.0


def _clock_figure(gpu: GpuUse) -> tuple[str, ...]:
    reasons = ", ".join(f"{name} in {percent(share)} of the samples" for name, share in gpu.slowed)
    most = f" of {gpu.clock_most_mhz:.0f}" if gpu.clock_most_mhz else ""
    clock = f"clock {gpu.clock_mhz:.0f}{most} MHz" if gpu.clock_mhz else ""
    power = f"{gpu.power_w:.0f} W" if gpu.power_w else ""
    return tuple(filter(None, (f"GPU {gpu.number} is slowed by {reasons}", clock, power)))


def find_data_parallel(facts: RunFacts) -> Sign | None:
    share = facts.stack.share("data-parallel")
    if facts.gpu_count < 2 or (share < 0.05 and not facts.data_parallel):
        return None
    use = tuple(f"GPU {gpu.number} {gpu.busy:.0f} % busy" for gpu in facts.gpus if gpu.busy is not None)
    figures = (*stack_figure(facts, "are in nn.DataParallel", "data-parallel"), *use[:8])
    if facts.data_parallel:
        place = facts.data_parallel
        figures = (f"{place.file}:{place.line}: {place.code}", *figures)
    return Sign(Confidence.LIKELY, figures, activity="data-parallel")


def find_unused_gpus(facts: RunFacts) -> Sign | None:
    """GPUs that no process of the job has ever used, while it uses others."""
    unused = [gpu for gpu in facts.gpus if gpu.samples >= FEW_SAMPLES and _is_unused(gpu)]
    if not unused or len(unused) == facts.gpu_count:
        return None
    names = ", ".join(str(gpu.number) for gpu in unused)
    figures = (f"GPU {names}: 0 % busy since the start, no memory of the job", *gpu_figure(facts))
    return Sign(
        Confidence.LIKELY, figures, {"unused": str(len(unused)), "count": str(facts.gpu_count), "gpus": names}
    )


def _is_unused(gpu: GpuUse) -> bool:
    return gpu.busy is not None and (gpu.busy_most or 0) < 1 and not gpu.memory_mib


# ------------------------------------------------------------ slow: the program


def find_busy_workers(facts: RunFacts) -> Sign | None:
    """Workers of a data loader at full CPU, and a main process that waits for them."""
    workers = facts.of_role("worker")
    if not workers or not may_wait(facts):
        return None
    cpu, wanted = mean(one.cpu for one in workers), mean(one.wanted_cpu for one in workers)
    waits = facts.stack.share("workers")
    is_starved = waits >= MUCH if facts.stack.samples else (facts.busy or 100) < UNDERUSED
    if wanted < BUSY_CPU or not is_starved:
        return None
    figures = (
        f"{len(workers)} workers take {cpu:.0f} % of a CPU each, and need {wanted:.0f} %",
        *gpu_figure(facts),
        *stack_figure(facts, "wait for the workers", "workers"),
    )
    names = {
        "workers": str(len(workers)),
        "cpus": str(facts.cpus),
        "more": str(min(facts.cpus, 2 * len(workers))),
    }
    return Sign(Confidence.LIKELY, figures, names, "workers")


def find_waiting_workers(facts: RunFacts) -> Sign | None:
    """Workers that wait for storage or the network, and a main process that waits for them."""
    workers = facts.of_role("worker")
    if not workers or not may_wait(facts) or facts.stack.share("workers") < MUCH:
        return None
    cpu, io_wait = mean(one.cpu for one in workers), mean(one.io_wait for one in workers)
    read = sum(one.read_mb_s for one in workers)
    if mean(one.wanted_cpu for one in workers) >= BUSY_CPU:
        return None
    figures = (
        f"{len(workers)} workers take {cpu:.0f} % of a CPU each and read {read:.0f} MB/s",
        *gpu_figure(facts),
        *stack_figure(facts, "wait for the workers", "workers"),
    )
    sure = Confidence.LIKELY if io_wait >= SOME or read >= 20 else Confidence.POSSIBLE
    return Sign(sure, figures, activity="workers")


def find_loading(facts: RunFacts) -> Sign | None:
    """The main process prepares the data itself."""
    if not may_wait(facts):
        return None
    share, main = facts.stack.share("loading"), facts.main
    if share >= MUCH:
        figures = (*stack_figure(facts, "prepare data", "loading"), *gpu_figure(facts), *cpu_figure(main))
        return Sign(Confidence.LIKELY, figures, activity="loading")
    is_alone = main is not None and main.busiest_wanted_cpu >= BUSY_CPU and not facts.of_role("worker")
    if facts.stack.samples or not is_alone or (facts.busy or 100) >= IDLE:
        return None
    return Sign(Confidence.POSSIBLE, (*gpu_figure(facts), *cpu_figure(main)))


def find_communication(facts: RunFacts) -> Sign | None:
    """Ranks that wait for each other; also those of a job without GPUs."""
    if facts.ranks < 2 or is_saturated(facts):
        return None
    share = facts.stack.share("communication")
    threads = sum(one.communication_cpu for one in facts.of_role("main"))
    figures = (
        f"{facts.ranks} ranks",
        *stack_figure(facts, "exchange data with other ranks", "communication"),
        *((f"its communication threads need {threads:.0f} % of a CPU",) if threads >= 1 else ()),
        *gpu_figure(facts),
    )
    is_waiting = facts.stack.share("backward") >= MUCH and threads >= 5 * facts.ranks
    if share >= SOME or threads >= 20 * facts.ranks or is_waiting:
        return Sign(Confidence.LIKELY, figures, activity="communication")
    is_spinning = (facts.busy or 0) >= SATURATED
    return Sign(Confidence.POSSIBLE, figures) if is_spinning else None


def find_sync(facts: RunFacts) -> Sign | None:
    """The host waits for the GPU within a step, and the GPU then waits for the host."""
    share = facts.stack.share("sync")
    if not may_wait(facts) or facts.busy is None or share < SOME:
        return None
    figures = (*stack_figure(facts, "wait for a value from the GPU", "sync"), *gpu_figure(facts))
    return Sign(Confidence.LIKELY if share >= MUCH else Confidence.POSSIBLE, figures, activity="sync")


def find_copies(facts: RunFacts) -> Sign | None:
    if not may_wait(facts):
        return None
    received = max((gpu.received_mb_s or 0.0 for gpu in facts.gpus), default=0.0)
    rate = (f"{received / 1000:.1f} GB/s arrive over PCIe",) if received else ()
    if facts.stack.share("copies") >= SOME:
        figures = (*stack_figure(facts, "copy to the GPU", "copies"), *rate, *gpu_figure(facts))
        return Sign(Confidence.LIKELY, figures, activity="copies")
    if received >= MUCH_PCIE_MB_S:
        return Sign(Confidence.POSSIBLE, (*rate, *gpu_figure(facts)))
    return None


def find_small_batch(facts: RunFacts) -> Sign | None:
    """The host cannot launch the small kernels as fast as the GPU runs them."""
    main, memory = facts.main, facts.memory_share
    if not may_wait(facts) or memory is None or memory >= SMALL_MEMORY or facts.busy is None:
        return None
    if main is None or main.wanted_cpu < BUSY_CPU:
        return None
    figures = (*memory_figure(facts), *gpu_figure(facts), *cpu_figure(main))
    share = facts.stack.share("forward", "backward", "optimizer")
    if share >= 0.4:
        launch = stack_figure(facts, "launch kernels", "forward", "backward", "optimizer")
        return Sign(Confidence.LIKELY, (*figures, *launch))
    is_possible = not facts.stack.samples and facts.busy >= IDLE
    return Sign(Confidence.POSSIBLE, figures) if is_possible else None


def find_saving(facts: RunFacts) -> Sign | None:
    if facts.stack.share("saving") < MUCH or is_saturated(facts):
        return None
    written = sum(one.written_mb_s for one in facts.processes)
    figures = (*stack_figure(facts, "write a checkpoint", "saving"), f"{written:.0f} MB/s written")
    return Sign(Confidence.POSSIBLE, figures, activity="saving")


def find_network(facts: RunFacts) -> Sign | None:
    if facts.stack.share("network") < MUCH or is_saturated(facts):
        return None
    figures = (*stack_figure(facts, "wait for a server", "network"), *gpu_figure(facts))
    return Sign(Confidence.LIKELY, figures, activity="network")


def find_host_code(facts: RunFacts) -> Sign | None:
    """Python code of the program itself."""
    if not may_wait(facts) or facts.busy is None or facts.busy >= SATURATED:
        return None
    if facts.stack.share("program", "sleeping") < 0.4:
        return None
    activity = max(("program", "sleeping"), key=facts.stack.share)
    figures = (
        *stack_figure(facts, "are in the program's own code", "program", "sleeping"),
        *gpu_figure(facts),
    )
    return Sign(Confidence.LIKELY, (*figures, *cpu_figure(facts.main)), activity=activity)


def find_slowdown(facts: RunFacts) -> Sign | None:
    """Steps that take longer now than before."""
    steps = facts.steps
    if steps is None or not steps.now_s or not steps.earlier_s or steps.now_s < 2 * steps.earlier_s:
        return None
    figure = f"a step takes {spell_s(steps.now_s)} now and took {spell_s(steps.earlier_s)} before"
    return Sign(Confidence.POSSIBLE, (figure,))


def find_underuse(facts: RunFacts) -> Sign | None:
    """GPUs that are little used, whatever the cause."""
    samples = max((gpu.samples for gpu in facts.gpus), default=0)
    if facts.busy is None or facts.busy >= UNDERUSED or samples < FEW_SAMPLES:
        return None
    figures = (*gpu_figure(facts), *memory_figure(facts), *cpu_figure(facts.main))
    return Sign(Confidence.POSSIBLE, figures, activity=most_sampled(facts))
