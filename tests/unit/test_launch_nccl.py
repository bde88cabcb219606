"""NCCL's log, in the forms that its releases from 2.4 to 2.28 write it, and what it means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.ml.launch.nccl import describe, parse

# Each: the log, what is said of it, and what is said where InfiniBand is there.
LOGS = {
    "2.4, sockets and shared memory": (
        """
t1:1475:1475 [0] NCCL INFO NET/IB : No device found.
t1:1475:1475 [0] NCCL INFO NET/Socket : Using [0]ens3:172.31.12.210<0>
NCCL version 2.4.8+cuda10.1
t1:1475:2146 [0] NCCL INFO Channel 01/02 :    0   1   2   3   4   5   6   7
t1:1481:2165 [3] NCCL INFO Channel 00 : 3[b1000] -> 4[18000] [send] via NET/Socket/0
t1:1480:2169 [2] NCCL INFO Channel 00 : 2[af000] -> 3[b1000] via P2P/IPC
t1:1477:2150 [1] NCCL INFO Channel 00 : 1[1a000] -> 2[af000] via direct shared memory
t1:1475:2146 [0] NCCL INFO Channel 00 : 7[b1000] -> 0[18000] [receive] via NET/Socket/0
""",
        "NCCL 2.4.8+cuda10.1: between nodes TCP sockets over ens3; "
        "within a node from GPU to GPU (P2P/IPC), through host memory (SHM)",
    ),
    "2.7, a plugin of AWS": (
        """
[1,0]<stdout>:w-0:26:67 [0] NCCL INFO Using network AWS Libfabric
[1,0]<stdout>:w-0:26:67 [0] NCCL INFO Setting affinity for GPU 0 to ff,ffff0000,00ffffff
[1,2]<stdout>:w-0:28:69 [2] NCCL INFO Channel 01 : 2[201c0] -> 7[a01d0] via P2P/IPC/read
[1,6]<stdout>:w:3:7 [6] NCCL INFO Channel 03 : 15[a01d0] -> 6[a01c0] [receive] via NET/AWS Libfabric/3/GDRDMA
""",
        "NCCL: between nodes AWS Libfabric with GPUDirect RDMA; within a node from GPU to GPU (P2P/IPC)",
    ),
    "2.18, InfiniBand": (
        """
n1:10:10 [0] NCCL INFO Bootstrap : Using eth0:10.4.2.17<0>
n1:10:10 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.4.2.17<0>
n1:10:10 [0] NCCL INFO Using network IB
NCCL version 2.18.3+cuda12.1
n1:10:90 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
n1:10:90 [0] NCCL INFO Channel 00/0 : 3[3] -> 8[0] [send] via NET/IB/0(1)/GDRDMA
n1:10:90 [0] NCCL INFO Channel 01/0 : 9[1] -> 2[2] [receive] via NET/IB/1/GDRDMA/Shared
n1:10:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read
""",
        "NCCL 2.18.3+cuda12.1: between nodes InfiniBand over mlx5_0, mlx5_1 with GPUDirect RDMA; "
        "within a node from GPU to GPU (P2P/IPC)",
    ),
    "2.21, RoCE through a plugin, host memory between": (
        """
n1:984:1257 [4] NCCL INFO NET/IB : Using [0]mlx5_6:1/RoCE [1]mlx5_7:1/RoCE
n1:984:1257 [4] NCCL INFO Using network IBext_v8
n1:984:1257 [4] NCCL INFO Channel 06/0 : 36[4] -> 20[4] [send] via NET/IBext_v8/3
n1:984:1257 [4] NCCL INFO Channel 07/0 : 36[4] -> 20[4] [send] via NET/IBext_v8/3/GDRDMA
""",
        "NCCL: between nodes RoCE over mlx5_6, mlx5_7 without GPUDirect RDMA",
    ),
    "2.25, one node": (
        """
k1:27224:27909 [2] NCCL INFO ncclCommInitRank comm 0x7f nranks 4 Init COMPLETE
k1:27224:27909 [2] NCCL INFO Channel 05/0 : 2[2] -> 0[0] via P2P/CUMEM
k1:27224:27909 [2] NCCL INFO Channel 00/0 : 0[0] -> 2[2] via P2P/indirect/1[1]
k1:27224:27909 [2] NCCL INFO Channel 00 : 0[0] -> 4[4] via SHM/direct/direct
""",
        "NCCL: within a node from GPU to GPU (P2P/CUMEM), from GPU to GPU (P2P/indirect), "
        "through host memory (SHM)",
    ),
    "2.28, sockets": (
        """
node-01:1897709:1897731 [0] NCCL INFO NET/Socket : Using [0]eth0:10.4.2.17<0> [1]eth1:10.5.2.17<0>
node-01:1897709:1897731 [0] NCCL INFO Assigned NET plugin Socket to comm
node-01:1897709:1897731 [0] NCCL INFO Using network Socket
node-01:1897709:1897731 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0
""",
        "NCCL: between nodes TCP sockets over eth0, eth1",
    ),
    "a communicator at the end of the line": (
        "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer comm 0x55e0 nRanks 02\n",
        "NCCL: within a node from GPU to GPU (P2P/direct pointer)",
    ),
    "no word of it yet": ("n1:1:1 [0] NCCL INFO Using network Socket\nNCCL version 2.20.5+cuda12.4\n", ""),
}


@pytest.mark.parametrize("name", LOGS)
def test_nccl_log_is_described(name):
    text, words = LOGS[name]
    assert describe(parse(text)) == words


def test_sockets_where_infiniband_is():
    words = describe(parse(LOGS["2.28, sockets"][0]), ["mlx5_0"])
    assert words.endswith("TCP sockets over eth0, eth1 (InfiniBand is present but not used: mlx5_0)")
    assert "not used" not in describe(parse(LOGS["2.18, InfiniBand"][0]), ["mlx5_0"])


def test_warnings_each_once():
    line = (
        "n1:1:2 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n2<55921>\n"
    )
    assert parse(line * 3).warnings == ("socketProgress: Connection closed by remote peer n2<55921>",)


@given(st.text())
def test_any_text_can_be_read(text):
    describe(parse(text))
    describe(parse(f"NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {text}"))
    describe(parse(f"NCCL INFO NET/{text}"))
