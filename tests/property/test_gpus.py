"""No job starts on a card that it must not have, for any events of the cards.

Strangers, lost and sick cards, new numbers, MIG layouts, restrictions, drains, other daemons' leases,
restarts; from what the driver shows to the start, with the census and the engine as they are.
"""

from __future__ import annotations

import os

import pytest

from gflow.config.table import STRATEGIES
from gflow.core.state.machine import Machine
from gflow.gpu.census import Census
from gflow.gpu.health import Health
from gflow.gpu.numbering import Numbering
from tests.property.cards import CardWorld, run_cards

SEED = int(os.environ.get("GFLOW_SEED", "0"))
STEPS = 2500
MOST_STEPS = 6000


@pytest.mark.parametrize("number", range(4))
def test_no_job_starts_where_it_must_not(number):
    world = run_cards(SEED, number, STEPS, STRATEGIES[number])
    assert world.starts > 100 and world.looks > 200, "the world was too quiet"


# ---------------------------------------------------------------- worlds with a known fault


def overlooked(monkeypatch, name):
    """The engine does not look at one of the tables that close GPUs."""
    original = Machine.recount

    def recount(self):
        empty = None if name == "allowed" else type(getattr(self, name))()
        kept = getattr(self, name)
        setattr(self, name, empty)
        original(self)
        setattr(self, name, kept)

    monkeypatch.setattr(Machine, "recount", recount)


def blocked_is_overlooked(monkeypatch):
    overlooked(monkeypatch, "blocked")


def leases_are_overlooked(monkeypatch):
    overlooked(monkeypatch, "foreign")


def drains_are_overlooked(monkeypatch):
    overlooked(monkeypatch, "drained")


def restrictions_are_overlooked(monkeypatch):
    overlooked(monkeypatch, "allowed")


def strangers_are_overlooked(monkeypatch):
    monkeypatch.setattr(Census, "_block", lambda self, index, strangers, scene: None)


def only_the_first_process_counts(monkeypatch):
    original = Census._count
    monkeypatch.setattr(
        Census,
        "_count",
        lambda self, gpu, card, *rest: original(
            self, gpu, card._replace(processes=card.processes[:1]), *rest
        ),
    )


def strays_are_overlooked(monkeypatch):
    original = Census._block
    monkeypatch.setattr(
        Census,
        "_block",
        lambda self, index, strangers, scene: original(
            self, index, [one for one in strangers if one.user != "gflow"], scene
        ),
    )


def unknown_processes_are_overlooked(monkeypatch):
    monkeypatch.setattr(Census, "_count_unknown", lambda self, *about: None)


def health_is_overlooked(monkeypatch):
    monkeypatch.setattr(Health, "judge", lambda self, card, now: "")


def faults_mend_by_themselves(monkeypatch):
    original = Health.judge

    def judge(self, card, now):
        why, self.fault = original(self, card, now), ""
        return why

    monkeypatch.setattr(Health, "judge", judge)


def faults_are_forgotten_by_the_next_daemon(monkeypatch):
    original = CardWorld._new_census

    def forgetful(self):
        self.state.machine.faults = {}
        self.twin.machine.faults = {}
        return original(self)

    monkeypatch.setattr(CardWorld, "_new_census", forgetful)


def lost_cards_are_believed(monkeypatch):
    original = Census._judge

    def judge(self, gpu, scene, holders, now):
        original(self, gpu, scene, holders, now)
        if scene.blocked.get(gpu.index, ("",))[0] == "Lost":
            del scene.blocked[gpu.index]

    monkeypatch.setattr(Census, "_judge", judge)


def numbers_are_the_drivers(monkeypatch):
    """A number means whatever card the driver counts there now."""
    original = Numbering.see

    def see(self, cards, held):
        self._numbers, self._gpus = {}, {}
        original(self, cards, held)

    monkeypatch.setattr(Numbering, "see", see)


def slices_are_forgotten(monkeypatch):
    """A slice that comes back gets another number, though a job has it by the old one."""
    original = Numbering.see
    monkeypatch.setattr(Numbering, "see", lambda self, cards, held: original(self, cards))


def cards_and_slices_are_not_told_apart(monkeypatch):
    """A card is given out while a job has a slice of it."""
    monkeypatch.setattr(Census, "_related", lambda self, gpu, holders: "")


def numbers_are_new_with_every_daemon(monkeypatch):
    original = Numbering.__init__
    monkeypatch.setattr(Numbering, "__init__", lambda self, held, parents: original(self, {}, parents))


MUTANTS = (
    blocked_is_overlooked,
    leases_are_overlooked,
    drains_are_overlooked,
    restrictions_are_overlooked,
    strangers_are_overlooked,
    only_the_first_process_counts,
    strays_are_overlooked,
    unknown_processes_are_overlooked,
    health_is_overlooked,
    faults_mend_by_themselves,
    faults_are_forgotten_by_the_next_daemon,
    lost_cards_are_believed,
    numbers_are_the_drivers,
    numbers_are_new_with_every_daemon,
    slices_are_forgotten,
    cards_and_slices_are_not_told_apart,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant, monkeypatch, record_property):
    mutant(monkeypatch)
    steps = 0
    for number in range(MOST_STEPS // 300):
        try:
            steps += run_cards(SEED, number, 300).steps
        except AssertionError as found:
            record_property("steps", steps)
            record_property("found", str(found).splitlines()[0])
            return
    pytest.fail(f"not caught in {steps} steps")
