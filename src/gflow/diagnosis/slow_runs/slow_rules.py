"""The rules about running jobs: a sign, its meaning, what to do, and the experiment that would confirm it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from gflow.diagnosis.slow_runs import signs
from gflow.diagnosis.slow_runs.run_facts import RunFacts
from gflow.diagnosis.slow_runs.signs import Sign


class Verdict(enum.StrEnum):
    """The answer about a running job."""

    STUCK = "stuck"
    SLOW = "slow"
    FINE = "fine"
    # It has just started: there are not enough samples.
    STARTING = "starting"
    UNKNOWN = "unknown"


class SlowRule(NamedTuple):
    """One row. `{name}` is a value of the sign, and `{job}` the job.

    Advice with `{dump}`, the command that prints the stack, is left out where that command fails.
    """

    cause: str
    verdict: Verdict
    sign: Callable[[RunFacts], Sign | None]
    summary: str
    advice: tuple[str, ...]
    experiment: str


# The last advice about every stuck job.
END_IT = "or end it: gcancel {job}"
STUCK, SLOW, FINE = Verdict.STUCK, Verdict.SLOW, Verdict.FINE

# Of two findings that are equally sure, the first row counts more.
RULES: tuple[SlowRule, ...] = (
    SlowRule("stopped", STUCK, signs.find_stopped,
             "The job's processes are stopped by a signal.",
             ("let them continue: kill -CONT {pids}", "look for a debugger or a shell that stopped them"),
             "after kill -CONT the CPU time grows again"),
    SlowRule("hung-io", STUCK, signs.find_hung_io,
             "The job hangs in the kernel: its disk or network file system does not answer.",
             ("look at the mount: df, dmesg, and the file server", "such a process ends only when the file system answers"),
             "ls of the folder that it reads hangs, too"),
    SlowRule("communication-hang", STUCK, signs.find_hung_communication,
             "The ranks wait for each other: one of them has left or runs another collective.",
             ("look at the log of every rank for an error, and at the step that each has reached",
              "NCCL says more with: gbatch --export ALL,TORCH_NCCL_TRACE_BUFFER_SIZE=2000,NCCL_DEBUG=INFO …"),
             "the stacks of the ranks differ: py-spy dump --pid PID for each of them"),
    SlowRule("stalled", STUCK, signs.find_stalled,
             "The job makes no steps any more.",
             ("see where it waits: {dump}", "see its last output: gjob log {job}"),
             "gjob why gives the same answer a minute later"),
    SlowRule("no-activity", STUCK, signs.find_quiet,
             "The job does nothing: no CPU, no GPU, no output.",
             ("see what it waits for: {dump}", "a job that waits on purpose (sleep, a server) looks the same"),
             "gjob why gives the same answer a minute later"),
    SlowRule("swapping", SLOW, signs.find_swapping,
             "The job's memory is swapped out and read back from disk.",
             ("give the job more memory, or start fewer jobs beside it: gbatch --memory SIZE",
              "use fewer data loader workers, or load less at once"),
             "vmstat 1 shows si and so above 0; with half the workers the steps become faster"),
    SlowRule("other-process", SLOW, signs.find_other_process,
             "The job shares its GPU with other processes.",
             ("see them: ginfo -l", "take a GPU alone: gbatch --gpus 1 without --shared"),
             "steps become faster when the other process ends"),
    SlowRule("throttled-heat", SLOW, signs.find_heat,
             "GPU {gpu} is too hot and lowers its clock.",
             ("tell an operator: fans, air flow and room temperature", "an operator keeps new jobs away from it: gctl drain --gpu {gpu}"),
             "nvidia-smi -q -d PERFORMANCE,TEMPERATURE shows a thermal slowdown"),
    SlowRule("throttled-hardware", SLOW, signs.find_hardware_slowdown,
             "The hardware slows GPU {gpu} down: power supply, cable or an external signal.",
             ("tell an operator: power cables, power supply, board", "an operator keeps new jobs away from it: gctl drain --gpu {gpu}"),
             "nvidia-smi -q -d PERFORMANCE shows a hardware slowdown"),
    SlowRule("power-limit", SLOW, signs.find_power_limit,
             "The power limit lowers the GPU's clock.",
             ("ask an operator for a higher limit: nvidia-smi -pl WATTS",),
             "nvidia-smi -q -d PERFORMANCE,POWER shows the software power cap as active"),
    SlowRule("data-parallel", SLOW, signs.find_data_parallel,
             "nn.DataParallel drives all GPUs from one process and copies the model at every step.",
             ("use DistributedDataParallel: gflow launch, or torchrun --nproc-per-node=gpu",),
             "DDP with the same batch on two GPUs makes more steps per second"),
    SlowRule("unused-gpus", SLOW, signs.find_unused_gpus,
             "{unused} of {count} GPUs are allocated and never used: GPU {gpus}.",
             ("start one process for each GPU: gflow launch, or torchrun --nproc-per-node={count}",
              "or ask for fewer GPUs: gjob redo {job} --gpus N"),
             "nvidia-smi shows no process on these GPUs"),
    SlowRule("augmentation", SLOW, signs.find_busy_workers,
             "The GPU waits for data: the {workers} data loader workers are at full CPU.",
             ("use more workers, up to the job's {cpus} CPUs: num_workers={more}",
              "do less on the CPU: cache decoded data, smaller images, augment on the GPU"),
             "with the same batch repeated (no loader) the steps become faster"),
    SlowRule("data-storage", SLOW, signs.find_waiting_workers,
             "The GPU waits for data: the data loader workers wait for storage.",
             ("copy the data to a local disk or to memory before the run", "use larger files: tar shards, Parquet, memory maps",
              "use more workers with prefetch_factor=4"),
             "a second epoch with the files in the page cache is faster"),
    SlowRule("communication", SLOW, signs.find_communication,
             "The ranks spend much of each step on exchanging gradients.",
             ("exchange less often: a larger batch, or gradient accumulation with no_sync()",
              "see the transport that NCCL uses: gbatch --export ALL,NCCL_DEBUG=INFO …",
              "measure the efficiency: gflow scale"),
             "one rank alone makes more steps per second than each of them"),
    SlowRule("data-loading", SLOW, signs.find_loading,
             "The GPU waits for data: the main process prepares it itself.",
             ("let workers prepare it: DataLoader(num_workers=4, pin_memory=True, persistent_workers=True)",
              "or prepare it once and store the result"),
             "with the same batch repeated (no loader) the steps become faster"),
    SlowRule("sync", SLOW, signs.find_sync,
             "The program waits for the GPU several times per step (.item(), .cpu(), print of a tensor).",
             ("keep losses as tensors (loss.detach()) and read them every 50 steps", "find the places: torch.cuda.set_sync_debug_mode('warn')"),
             "without these lines the steps become faster"),
    SlowRule("host-copies", SLOW, signs.find_copies,
             "Copies from the host to the GPU take much of each step.",
             ("use pin_memory=True in the loader and .to(device, non_blocking=True)",
              "copy smaller types (uint8 images) and convert on the GPU"),
             "with the batch kept on the GPU the steps become faster"),
    SlowRule("small-batch", SLOW, signs.find_small_batch,
             "The work of a step is too small for the GPU: the host cannot launch kernels fast enough.",
             ("use a larger batch; gflow fit predicts the largest that fits",
              "launch fewer kernels: torch.compile(mode='reduce-overhead'), fused optimizers",
              "or share the GPU with other jobs: gbatch --shared --gpu-memory SIZE"),
             "with twice the batch a step takes hardly longer"),
    SlowRule("network", SLOW, signs.find_network,
             "The program waits for a server.",
             ("fetch data and models before the run: HF_HUB_OFFLINE=1, WANDB_MODE=offline",),
             "without the network calls the steps become faster"),
    SlowRule("saving", SLOW, signs.find_saving,
             "The program writes a checkpoint.",
             ("save less often, or in the background: gflow.train and torch.distributed.checkpoint.async_save",),
             "gjob why gives another answer a minute later"),
    SlowRule("host-code", SLOW, signs.find_host_code,
             "The GPU waits for Python code of the program.",
             ("move this work into data loader workers or onto the GPU", "profile it: gjob exec {job} -- py-spy record -o stacks.svg --pid {pid}"),
             "without these lines the steps become faster"),
    SlowRule("waiting-for-io", SLOW, signs.find_io_wait,
             "The job waits for storage.",
             ("copy the data to a local disk before the run", "look at the load of the disk: iostat -x 1"),
             "a second pass with the files in the page cache is faster"),
    SlowRule("cpu-contention", SLOW, signs.find_cpu_contention,
             "The job's threads wait for a CPU.",
             ("see what else takes the CPUs: top", "ask for more CPUs: gjob redo {job} --cpus N",
              "use fewer threads: OMP_NUM_THREADS, torch.set_num_threads"),
             "the steps become faster when other work on the machine ends"),
    SlowRule("slowed-down", SLOW, signs.find_slowdown,
             "Steps take longer than before.",
             ("compare the use over time: gjob usage {job}", "look for growing lists, logs and metrics"),
             "a fresh run is as fast as this one was at its start"),
    SlowRule("gpu-underused", SLOW, signs.find_underuse,
             "The GPU is little used; the cause is not known.",
             ("with py-spy installed, gjob why shows where the program waits",
              "compare the use over time: gjob usage {job}"),
             "torch.profiler shows the gaps between kernels"),
    SlowRule("power-cap", FINE, signs.find_power_cap,
             "The GPU runs at its power limit, as dense matrix products do.",
             ("nothing: this is as fast as the card can be",),
             "a lower power limit makes the steps slower"),
)  # fmt: skip
