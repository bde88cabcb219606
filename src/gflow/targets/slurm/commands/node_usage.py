"""Resource usage of a running job on its nodes, sampled by a small job step that overlaps it.

The step needs only a shell, grep and awk; neither accounting nor control groups. It finds the processes of
the job by their environment. CPU use is the CPU time that they took within one second. Parsing is pure.
"""

from __future__ import annotations

from gflow.wire.answers.job_details import GpuOnNode, OnNode

# Set for the step itself, so that it does not count itself.
MARK = "GFLOW_PROBE"
QUERY = "index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
SCRIPT = """
echo "node ${SLURMD_NODENAME:-$(hostname)}"
echo "cpus ${SLURM_CPUS_ON_NODE:-0}"
used() {
  list=$(grep -lsz "^SLURM_JOB_ID=$SLURM_JOB_ID\\$" /proc/[0-9]*/environ)
  list=$(grep -lsz "^SLURMD_NODENAME=$SLURMD_NODENAME\\$" $list /dev/null)
  list=$(grep -Lsz "^GFLOW_PROBE=" $list /dev/null | grep -v '^/dev/null$')
  stats=$(for file in $list; do echo "${file%environ}stat"; done)
  echo "clock $(cut -d' ' -f1 /proc/uptime)"
  # A process's name may hold anything: the numbers come after its last bracket.
  [ -z "$stats" ] || cat $stats 2>/dev/null | sed 's/.*) //' | awk -v tick="$(getconf CLK_TCK)" \\
    -v page="$(getconf PAGESIZE)" '{ time += $12 + $13; pages += $22 }
    END { printf "used %d %.2f %.0f\\n", NR, time / tick, pages * page / 1048576 }'
}
used; sleep 1; used
if [ -z "${CUDA_VISIBLE_DEVICES:-}" ]; then :
elif command -v nvidia-smi >/dev/null; then
  nvidia-smi -i "$CUDA_VISIBLE_DEVICES" --format=csv,noheader,nounits --query-gpu=QUERY 2>&1 | sed 's/^/gpu /'
else echo "without $CUDA_VISIBLE_DEVICES"; fi
""".replace("QUERY", QUERY)


def parse_probe(text: str) -> list[OnNode]:
    """Parse the output of the steps on all nodes. srun puts a task number before each line (`--label`)."""
    blocks: dict[int, list[str]] = {}
    for line in text.splitlines():
        number, colon, rest = line.partition(": ")
        if colon and number.strip().isdecimal():
            blocks.setdefault(int(number), []).append(rest)
    found = [_parse_node(lines) for _, lines in sorted(blocks.items())]
    return [one for one in found if one is not None]


def _parse_node(lines: list[str]) -> OnNode | None:
    node, cpus, note = "", 0, ""
    clocks: list[float] = []
    used: list[tuple[int, float, int]] = []
    gpus: list[GpuOnNode] = []
    for line in lines:
        kind, _, rest = line.partition(" ")
        try:
            if kind == "node":
                node = rest
            elif kind == "cpus":
                cpus = int(rest)
            elif kind == "clock":
                clocks.append(float(rest))
            elif kind == "used":
                words = rest.split()
                used.append((int(words[0]), float(words[1]), int(words[2])))
            elif kind == "without":
                note = f"no nvidia-smi on this node, so the use of its GPUs is unknown ({rest})"
            elif kind == "gpu":
                gpus.append(_parse_gpu(rest))
        except (ValueError, IndexError):  # usually an error message of nvidia-smi
            note = note or f"nvidia-smi says: {rest[:120]}" if kind == "gpu" else note
    if not node:
        return None
    count, seconds, mib = used[-1] if used else (0, 0.0, 0)
    span = clocks[-1] - clocks[0] if len(clocks) > 1 else 0.0
    # The CPU time of a process that ended in between is missing from the second sample.
    rate = max(0.0, seconds - used[0][1]) / span if len(used) > 1 and span > 0 else 0.0
    return OnNode(
        node=node,
        cpus=cpus,
        cpus_used=round(rate, 2),
        cpu_time_s=seconds,
        memory_mib=mib,
        processes=count,
        gpus=gpus,
        note=note,
    )


def _parse_gpu(line: str) -> GpuOnNode:
    index, name, busy, memory, total, power, heat = (part.strip() for part in line.split(","))
    return GpuOnNode(
        gpu=int(index),
        name=name,
        busy=_parse_int(busy),
        memory_mib=_parse_int(memory),
        memory_total_mib=_parse_int(total),
        power_w=_parse_float(power),
        temperature=_parse_int(heat),
    )


def _parse_int(word: str) -> int | None:
    number = _parse_float(word)
    return None if number is None else round(number)


def _parse_float(word: str) -> float | None:
    """Parse a value of nvidia-smi; None for `[N/A]`, `[Not Supported]` and `[Unknown Error]`."""
    return None if word.startswith("[") or word in ("N/A", "") else float(word)
