"""Errors that the NVIDIA driver reports (Xids): of the card, and of programs on it.

Source: NVIDIA, "XID Errors", docs.nvidia.com/deploy/xid-errors.
"""

from __future__ import annotations

# Faults of the card that do not mend by themselves: they drain the GPU.
LASTING_FAULTS: dict[int, str] = {
    48: "double-bit memory error",
    62: "internal controller halted",
    64: "memory rows could not be remapped",
    74: "NVLink error",
    79: "fell off the bus",
    95: "uncontained memory error",
    119: "its controller does not answer",
    120: "its controller failed",
    140: "unrecovered memory error",
    143: "initialisation error",
}
# All faults of the card or its connection.
CARD_FAULTS: dict[int, str] = LASTING_FAULTS | {
    63: "a memory row is being replaced",
    92: "many single-bit memory errors",
    94: "memory error, confined to this program",
}
# Faults of a program.
PROGRAM_FAULTS: dict[int, str] = {
    13: "an instruction or an access of the kernel was not allowed",
    31: "the kernel accessed an address that is not mapped",
    43: "the program's work on the GPU was stopped after an error",
    45: "the program's work was removed after an error",
}
