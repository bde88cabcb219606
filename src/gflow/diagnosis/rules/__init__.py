"""The rules, one module for each family of causes."""

from __future__ import annotations

from gflow.diagnosis.rules import cuda, distributed, memory, network, python, system, training
from gflow.diagnosis.rules.rule import Rule

# In this order; of two findings of equal weight in one line the first counts.
RULES: tuple[Rule, ...] = (
    *memory.RULES,
    *cuda.RULES,
    *training.RULES,
    *distributed.RULES,
    *network.RULES,
    *system.RULES,
    *python.RULES,
)
