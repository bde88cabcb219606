"""Rules about memory: of the GPU, of the host, and shared memory."""

from __future__ import annotations

from gflow.diagnosis.rules.rule import Confidence, Depth, Rule

LESS_GPU_MEMORY = (
    "use a smaller batch with gradient accumulation, bf16, or gradient checkpointing: gflow plan",
    "predict what fits before the next run: gflow fit --help",
)
MORE_HOST_MEMORY = (
    "give the job more: gjob redo {job} --memory SIZE",
    "load less at once, or use fewer workers",
)

RULES = (
    Rule(
        "cuda-oom",
        ("CUDA out of memory", "HIP out of memory", "XPU out of memory"),
        "The GPU ran out of memory[: {tried} more were needed][; {free} of {total} were free].",
        LESS_GPU_MEMORY,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.15 GiB of which 1.10 GiB is free. Process 4242 has 78.05 GiB memory in use. Of the allocated memory "
        "70.20 GiB is allocated by PyTorch, and 900.00 MiB is reserved by PyTorch but unallocated.",
        r"(?:CUDA|HIP|XPU) out of memory(?:\. Tried to allocate (?P<tried>[\d.]+ [KMGT]i?B))?(?:.* total capacity of (?P<total>[\d.]+ [KMGT]i?B) of which (?P<free>[\d.]+ [KMGT]i?B) is free)?",
    ),
    Rule(
        "cuda-oom",
        ("CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation",
         "CUDA driver error: out of memory", "CUDA runtime error (2) : out of memory", "cuda runtime error (2)",
         "Cuda failure 'out of memory'", "Cuda failure 2 'out of memory'", "cudaMalloc failed: out of memory", "cudaMalloc retry failed: out of memory", "cuda failed with error 2 out of memory"),
        "The GPU ran out of memory outside PyTorch's allocator.",
        ("look for other processes on the GPU: ginfo", *LESS_GPU_MEMORY),
        "RuntimeError: CUDA error: out of memory",
        r"^(?!Search for `)",
    ),
    Rule(
        "cuda-oom",
        ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
        "A CUDA library found no memory for its workspace: the GPU is full.",
        LESS_GPU_MEMORY,
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "cuda-oom",
        ("RESOURCE_EXHAUSTED: Out of memory", "RESOURCE_EXHAUSTED: Failed to allocate", "RESOURCE_EXHAUSTED: Error allocating device buffer",
         "RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY"),
        "XLA (JAX) ran out of GPU memory.",
        (*LESS_GPU_MEMORY, "share a GPU only with XLA_PYTHON_CLIENT_PREALLOCATE=false or XLA_PYTHON_CLIENT_MEM_FRACTION"),
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    ),
    Rule(
        "cuda-oom",
        ("OOM when allocating tensor",),
        "TensorFlow ran out of memory for a tensor of shape {shape}.",
        LESS_GPU_MEMORY,
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
        "shape[64,512,56,56] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        r"OOM when allocating tensor with shape\[(?P<shape>[\d,]+)\]",
    ),
    Rule(
        "cuda-oom",
        ("OutOfMemoryError", "OUT_OF_MEMORY", "failed to allocate CUDA", "unable to allocate CUDA", "ut of memory on device", "ut of memory error on GPU", "ResourceExhaustedError", "NVML_SUCCESS == r INTERNAL ASSERT FAILED"),
        "The GPU ran out of memory.",
        LESS_GPU_MEMORY,
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 25,600,000 bytes (allocated so far: 3,635,267,072 bytes).",
        r"cu(?:py|da)\S*\.OutOfMemoryError|torch\.OutOfMemoryError|ResourceExhaustedError.*(?:allocate|OOM)|NVML_SUCCESS == r|(?:CUDA|CU|HIP)\w*OUT_OF_MEMORY|allocate CUDA\d* buffer|[Oo]ut of memory (?:error )?on (?:device|GPU)",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "cuda-oom",
        ("Free memory on device", "larger than the available KV cache memory", "increase --mem-fraction-static", "No available memory for the cache blocks", "larger than the maximum number of tokens that can be stored in KV cache"),
        "The inference server has no GPU memory left for its KV cache.",
        ("lower the context length (max_model_len) or the concurrency, or raise gpu_memory_utilization",
         "predict it: gflow fit --infer"),
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        r"^(?!.*Free memory on device)|is less than desired GPU memory utilization",
    ),
    Rule(
        "shared-memory",
        ("It is possible that dataloader's workers are out of shared memory",
         "DataLoader worker", "unable to open shared memory object", "unable to write to file </torch_",
         "unable to mmap", "unable to allocate shared memory", "unable to resize file </torch_", "/dev/shm", "posix_fallocate failed", "Error while creating shared memory segment /dev/shm",
         "Error while attaching to shared memory segment /dev/shm"),
        "Shared memory (/dev/shm) is full: workers of the data loader pass their batches through it.",
        ("look at df -h /dev/shm, and enlarge it (in a container: --shm-size=8g or --ipc=host)",
         "or use fewer workers, or torch.multiprocessing.set_sharing_strategy('file_system')"),
        "RuntimeError: DataLoader worker (pid 2412) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        r"out of shared memory|killed by signal: Bus error|shared memory object|/dev/shm/nccl"
        r"|unable to allocate shared memory|unable to (?:write|resize|mmap)[^<]*</(?:torch_|dev/shm).*(?:No space|Cannot allocate|\(28\)|\(12\))"
        r"|No space left on device.*/dev/shm|/dev/shm.*No space left|posix_fallocate failed.*No space",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "host-oom",
        ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory"),
        "The host has no memory for {bytes} bytes more.",
        MORE_HOST_MEMORY,
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
        r"allocate (?P<bytes>\d+) bytes",
    ),
    Rule(
        "host-oom",
        ("Unable to allocate",),
        "NumPy found no host memory for {size}.",
        MORE_HOST_MEMORY,
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 149. GiB for an array with shape "
        "(200000, 100000) and data type float64",
        r"Unable to allocate (?P<size>[\d.]+ [KMGT]iB) for an array",
    ),
    Rule(
        "host-oom",
        ("MemoryError", "memory allocation of", "std::bad_alloc", "Cannot allocate memory", "java.lang.OutOfMemoryError"),
        "The host ran out of memory.",
        MORE_HOST_MEMORY,
        "MemoryError",
        r"^\S*MemoryError\b(?!.*CUDA)|std::bad_alloc|OSError: \[Errno 12\]|fork: Cannot allocate|cannot allocate memory in static"
        r"|\[Errno 12\] Cannot allocate|java\.lang\.OutOfMemoryError|mmap.*Cannot allocate memory|memory allocation of \d+ bytes failed",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "host-oom",
        ("oom-kill", "oom_kill", "Out Of Memory", "Out of memory: Killed process", "OOM Killed", "OOMKilled"),
        "The kernel killed a process of the job because memory ran out.",
        MORE_HOST_MEMORY,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.batch. Some of the step tasks have been OOM Killed.",
        r"oom.kill|: Out Of Memory|OOM ?Killed|Killed process",
    ),
    Rule(
        "host-oom",
        ("memory limit", "memory budget", "running low on memory"),
        "A worker used more host memory than it may.",
        MORE_HOST_MEMORY,
        "distributed.nanny - WARNING - Worker exceeded 95% memory budget. Restarting",
        r"exceeded (?:[\w% ]+ )?(?:pod |step )?memory (?:limit|budget)|running low on memory",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "host-oom",
        ("killed by signal: Killed", "terminated by signal 9", "Signal 9 (SIGKILL)", "SIGKILL", "exitcode: -9", "return code = -9", "exited on signal 9", "exitcode  : -9", "Killed"),
        "A process got KILL: mostly the kernel does that when the host's memory runs out.",
        ("see whether it was the kernel: journalctl -k -g 'out of memory'", *MORE_HOST_MEMORY),
        "RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed.",
        r"killed by signal: Killed|signal 9\b|^(?!.*\(1\)).*SIGKILL|return code = -9|exitcode\s*: -9|(?:line \d+: *\d+ |^)Killed\b",
        confidence=Confidence.LIKELY,
        depth=Depth.GENERAL,
    ),
)  # fmt: skip
