"""Rules about several processes: NCCL, gloo, rendezvous, launchers."""

from __future__ import annotations

from gflow.diagnosis.rules.rule import Confidence, Depth, Rule

FIRST_RANK = "the cause is on the rank that stopped first: look for its traceback above, or in its own log"
INTERFACE = (
    "name the interface that joins the nodes: NCCL_SOCKET_IFNAME=eth0 (ip -br addr lists them)",
    "NCCL_DEBUG=INFO shows what NCCL chose",
)

RULES = (
    Rule(
        "nccl-timeout",
        ("Watchdog caught collective operation timeout", "NCCL watchdog thread terminated", "[Rank"),
        "A collective of NCCL timed out: one rank did not take part (it died, waits, or computes another number of steps).",
        (FIRST_RANK, "let all ranks do the same number of steps; a long validation on one rank needs a longer timeout",
         "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 writes which rank was missing"),
        "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
        r"Watchdog caught collective operation timeout|watchdog thread terminated with exception: NCCL Operation Timed Out"
        r"|\[Rank \d+\] NCCL watchdog thread terminated(?! with exception: (?:CUDA|NCCL) error)",
        confidence=Confidence.LIKELY,
        depth=Depth.GENERAL,
    ),
    Rule(
        "nccl-timeout",
        ("Some NCCL operations have failed or timed out", "eartbeat monitor timed out"),
        "A collective of NCCL failed or timed out.",
        (FIRST_RANK,),
        "[rank4]:[E321 02:07:09.531 ProcessGroupNCCL.cpp:684] [Rank 4] Some NCCL operations have failed or timed out.",
        confidence=Confidence.POSSIBLE,
        depth=Depth.CONSEQUENCE,
    ),
    Rule(
        "nccl-interface",
        ("Unable to find address for", "Bootstrap : no socket interface found", "no socket interface found", "NET/Socket : No usable",
         "NET/IB : No device found", "Call to connect returned", "No route to host", "Call to bind failed", "Socket creation failed", "socketProgressOpt: Call to recv"),
        "NCCL could not reach the other ranks over the network.",
        INTERFACE,
        "node1:2011:2011 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        r"no socket interface found|gloo.*Unable to find address for|NCCL WARN.*(?:Call to connect returned|Call to bind failed|Socket creation failed|No route to host|Connection timed out|No usable)",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "nccl-duplicate-gpu",
        ("Duplicate GPU detected",),
        "Two ranks use the same GPU.",
        ("start as many processes as the job has GPUs, and let each use cuda:LOCAL_RANK: gflow launch does both",),
        "node1:3120:3190 [0] init.cc:1007 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
    ),
    Rule(
        "nccl-infiniband",
        ("ibv_reg_mr", "Got completion from peer", "ibv_create_qp failed", "ibv_modify_qp failed", "NET/IB : Got async event"),
        "InfiniBand failed: {text}.",
        ("locked memory must be unlimited: ulimit -l", "try without it: NCCL_IB_DISABLE=1; if that works, ask the administrator"),
        "node2:812:901 [3] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
        r"(?P<text>(?:Call to )?ibv_\w+ failed[^\n]{0,60}|Got completion from peer[^\n]{0,90}(?:status=|error )\d+)",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "nccl-error",
        ("NCCL error in", "ncclSystemError", "ncclInternalError", "ncclInvalidUsage", "ncclUnhandledCudaError", "NCCL Error "),
        "NCCL failed: {kind}.",
        ("NCCL prints the cause before this line with: gbatch --export ALL,NCCL_DEBUG=WARN …", *INTERFACE),
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
        "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
        r"(?P<kind>unhandled system error|unhandled cuda error|internal error|invalid usage|ncclSystemError|ncclInternalError"
        r"|ncclInvalidUsage|ncclUnhandledCudaError|NCCL Error \d)",
        confidence=Confidence.POSSIBLE,
        depth=Depth.GENERAL,
    ),
    Rule(
        "peer-died",
        ("closed by remote peer", "failed : Broken pipe", "failed : Connection reset", "lost communication with"),
        "The connection to another process of the run broke: it went away first.",
        (FIRST_RANK,),
        "node-22:183006:183181 [1] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer node-22<47861>",
        r"Connection closed by remote peer|Call to (?:recv|send)\w* (?:from|to).*failed|lost communication with a remote",
        confidence=Confidence.POSSIBLE,
        depth=Depth.GENERAL,
    ),
    Rule(
        "peer-died",
        ("remote process exited or there was a network error", "ncclRemoteError", "Connection closed by peer", "Broken pipe",
         "Connection reset by peer", "recvValue failed", "sendBytes failed", "ailed to recv, got 0 bytes", "Rank 0 is not ready",
         "NCCL communicator was aborted", "[c10d] recvValue", "Socket recv failed"),
        "Another process of the run went away first.",
        (FIRST_RANK,),
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator, last error: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        r"remote process exit|ncclRemoteError|gloo.*Connection (?:closed|reset) by peer|Connection (?:closed|reset) by peer.*gloo"
        r"|recvValue failed|sendBytes failed|got 0 bytes|communicator was aborted|is not ready|\[\S*/pair\.cc\S*\] Connection (?:closed|reset)",
        confidence=Confidence.LIKELY,
        depth=Depth.CONSEQUENCE,
    ),
    Rule(
        "gloo-timeout",
        ("Timed out waiting", "connectFullMesh failed", "failed to pass monitoredBarrier", "successfully reached monitoredBarrier"),
        "A collective of gloo failed or timed out: one rank did not take part.",
        (FIRST_RANK, "if none stopped, one is later than the time-out (data, a checkpoint): init_process_group(timeout=…)"),
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
        r"Timed out waiting \d+ms for (?:recv|send) operation|connectFullMesh failed(?!.*(?:by peer|refused))|monitoredBarrier",
        confidence=Confidence.LIKELY,
        depth=Depth.GENERAL,
    ),
    Rule(
        "rendezvous",
        ("RendezvousTimeoutError", "RendezvousConnectionError", "clients joined", "RuntimeError: Socket Timeout", "cannot be retrieved (gai error", "client socket has timed out", "Timed out after", "wait timeout after",
         "RendezvousClosedError", "failed to connect to", "The client socket has failed to connect"),
        "Not all processes of the run found each other in time.",
        ("all nodes need the same MASTER_ADDR and port, and it must be reachable: gflow launch sets both",
         "check that the number of processes started equals the world size"),
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
        r"gai error|Socket Timeout|RendezvousTimeout|RendezvousConnection|clients joined|client socket has (?:timed out|failed to connect)|wait timeout after \d+ms"
        r"|RendezvousClosed|Timed out after \d+ seconds waiting for clients",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "port-in-use",
        ("Address already in use", "EADDRINUSE", "address already in use", "Only one usage of each socket address", "but another process is utilizing it"),
        "The port[ {port}] is taken by another process.",
        ("use a free one: gflow launch chooses it; with torchrun: --master_port or --rdzv-endpoint localhost:0",
         "look for a left-over process of an earlier run"),
        "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use",
        r"(?:port: (?P<port>\d+).*)?(?:[Aa]ddress already in use|EADDRINUSE)|port `(?P<port2>\d+)`.*another process is utilizing",
    ),
    Rule(
        "ddp-unused",
        ("Expected to have finished reduction in the prior iteration", "Expected to mark a variable ready only once"),
        "DistributedDataParallel expects each parameter to take part in the loss exactly once.",
        ("parameters without use: pass find_unused_parameters=True, or make each take part in the loss",
         "used twice (checkpointing, shared weights): use_reentrant=False, or static_graph=True"),
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
    ),
    Rule(
        "rank-mismatch",
        ("Detected mismatch between collectives on ranks", "DDP expects same model across all ranks", "params in this process with sizes",
         "Tensor sizes are not equal across ranks", "Expected tensors to have the same size", "Detected mismatch of", "Mismatched collective detected"),
        "The ranks do different things: other models, shapes or collectives.",
        ("build the model, its parameters and the batches alike on every rank (seeds, branches by rank, last batch)",),
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 148 params, while rank 1 has inconsistent 146 params.",
    ),
    Rule(
        "process-group",
        ("Default process group has not been initialized", "Default process group is not initialized", "environment variable RANK expected, but not set",
         "expected, but not set", "KeyError: 'LOCAL_RANK'", "KeyError: 'RANK'", "KeyError: 'WORLD_SIZE'", "KeyError: 'MASTER_ADDR'"),
        "The script expects to be started by a launcher.",
        ("start it with: gflow launch SCRIPT (or torchrun)",),
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
    ),
    Rule(
        "rank-died",
        ("ChildFailedError", "Root Cause (first observed failure)", "exits with return code =", "local_rank:", "Sending process", "failed (exitcode:", "exited with code", "MPI_ABORT was invoked",
         "died with <Signals.", "srun: error:", "subprocess.CalledProcessError", "Horovod has been shut down", "processes exited with non-zero status", "a worker died or was killed", "A worker died or was killed", "The actor is dead", "ActorDiedError", "KilledWorker"),
        "A process of the launch failed first[ (exit code {code})].",
        (FIRST_RANK,),
        "E1118 10:20:30.123000 4242 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
        "local_rank: 3 (pid: 4250) of binary: /usr/bin/python3",
        r"failed \(exitcode: (?P<code>-?\d+)\)|ChildFailedError|exits with return code = (?P<code2>-?\d+)|MPI_ABORT was invoked|died with <Signals\.|Root Cause|CalledProcessError"
        r"|srun: error: \S+: tasks? \S+: Terminated|Horovod has been shut|exited with non-zero|worker died|actor is dead|ActorDied|KilledWorker",
        confidence=Confidence.POSSIBLE,
        depth=Depth.CONSEQUENCE,
    ),
    Rule(
        "rank-died",
        ("gflow launch: rank",),
        "Rank {rank} of the launch failed first: it {how}.",
        ("its last lines follow in the log; all of its output is in the folder that gflow launch names",),
        "gflow launch: rank 2 exited with code 1; the others were stopped",
        r"^gflow launch: rank (?P<rank>\d+) (?P<how>was killed by \w+|exited with code \d+)",
        depth=Depth.CONSEQUENCE,
    ),
    Rule(
        "rank-died",
        ("Exited with exit code",),
        "A task of the launch failed first (exit code {code}).",
        (FIRST_RANK,),
        "srun: error: node0824: task 5: Exited with exit code 1",
        r"srun: error: \S+: tasks? \S+: Exited with exit code (?P<code>[1-9]\d*)",
        confidence=Confidence.LIKELY,
        depth=Depth.CONSEQUENCE,
    ),
)  # fmt: skip
