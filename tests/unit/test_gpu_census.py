"""Numbers that stay with cards, and who is on them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile

import pytest

from gflow.gpu.census import Census
from gflow.gpu.numbering import Numbering
from gflow.gpu.owners import Owner, Owners
from gflow.gpu.port import Card, Look, Process
from gflow.gpu.settings import GpuSettings


def card(name, number, *processes, parent="", links=()):
    return Card(
        uuid=name,
        number=number,
        model="A100",
        memory_mib=80000,
        parent=parent,
        links=links,
        processes=processes,
    )


class FakeOwners:
    def __init__(self, **owners):
        self.owners = {int(name[1:]): owner for name, owner in owners.items()}

    def of(self, pid):
        return self.owners.get(pid, Owner())

    def keep(self, pids):
        list(pids)

    def started(self, pid):
        return 7 if pid in self.owners else None

    def shim_of(self, run):
        return next((pid for pid, owner in self.owners.items() if owner.run == run), None)

    def runs_containers(self, pid):
        return True


EVE = Owner(user="eve", command="python eve.py", started=7)
OURS = Owner(run="3.1")


def census(tmp_path, settings=None, held=None, **owners):
    return Census(settings or GpuSettings(), FakeOwners(**owners), Numbering(held))


class TestNumbers:
    def test_gpu_numbers_follow_the_driver(self):
        numbering = Numbering()
        numbering.see((card("A", 0), card("B", 1)))
        assert [(gpu.uuid, gpu.index, gpu.number) for gpu in numbering.gpus] == [("A", 0, 0), ("B", 1, 1)]

    def test_card_keeps_its_number_after_renumbering(self):
        numbering = Numbering()
        numbering.see((card("A", 0), card("B", 1), card("C", 2)))
        numbering.see((card("A", 0), card("C", 1)))
        assert [(gpu.uuid, gpu.index, gpu.number) for gpu in numbering.gpus] == [
            ("A", 0, 0), ("B", 1, 1), ("C", 2, 1),
        ]  # fmt: skip
        numbering.see((card("A", 0), card("C", 1), card("D", 2)))
        assert numbering.number_of("D") == 3, "2 is C's for as long as this daemon lives"

    def test_gpus_of_running_jobs_keep_numbers_after_restart(self):
        numbering = Numbering({"C": 2})
        numbering.see((card("A", 0), card("C", 1), card("D", 2)))
        assert {gpu.uuid: gpu.index for gpu in numbering.gpus} == {"A": 0, "C": 2, "D": 3}

    def test_slices_come_after_whole_cards_and_go_when_they_go(self):
        numbering = Numbering()
        numbering.see((card("A", 0), card("M1", -1, parent="B"), card("M2", -1, parent="B"), card("C", 2)))
        assert {gpu.uuid: gpu.index for gpu in numbering.gpus} == {"A": 0, "C": 2, "M1": 4, "M2": 5}
        numbering.see((card("A", 0), card("B", 1), card("C", 2)))
        assert {gpu.uuid: gpu.index for gpu in numbering.gpus} == {"A": 0, "B": 1, "C": 2}

    def test_links_use_gpu_numbers(self):
        numbering = Numbering({"B": 5})
        numbering.see((card("A", 0, links=("B",)), card("B", 1, links=("A",))))
        assert {gpu.uuid: gpu.links for gpu in numbering.gpus} == {"A": (5,), "B": (0,)}


class TestCensus:
    def test_strangers_block_and_our_jobs_do_not(self, tmp_path):
        look = Look((card("A", 0, Process(10, 500)), card("B", 1, Process(11, 700), Process(12, 1))))
        report = census(tmp_path, p10=EVE, p11=OURS, p12=OURS).take(look, {1: ("3.1",)}, 0)
        assert {index: str(why) for index, why in report.blocked.items()} == {
            0: "Unmanaged: eve, python eve.py (pid 10)"
        }
        assert report.used == {"3.1": {1: 701}}

    def test_a_stranger_beside_our_job_blocks_what_comes_next(self, tmp_path):
        look = Look((card("A", 0, Process(10, 500), Process(11, 700)),))
        report = census(tmp_path, p10=EVE, p11=OURS).take(look, {0: ("3.1",)}, 0)
        assert report.blocked[0].kind == "Unmanaged" and report.used == {"3.1": {0: 700}}

    @pytest.mark.parametrize(("memory", "blocks"), [(400, False), (500, False), (501, True), (None, True)])
    def test_small_unmanaged_process_is_tolerated(self, tmp_path, memory, blocks):
        look = Look((card("A", 0, Process(10, memory)),))
        report = census(tmp_path, GpuSettings(unmanaged_memory_mb=500), p10=EVE).take(look, {}, 0)
        assert bool(report.blocked) == blocks
        assert report.taken == ({} if blocks else {0: 512})

    def test_ignored_process_is_matched_by_gpu_pid_and_start(self, tmp_path):
        look = Look((card("A", 0, Process(10, 500)), card("B", 1, Process(10, 500))))
        watch = census(tmp_path, p10=EVE)
        watch.ignored = frozenset({(0, 10, 7)})
        assert list(watch.take(look, {}, 0).blocked) == [1]
        watch.ignored = frozenset({(0, 10, 6)})
        assert list(watch.take(look, {}, 0).blocked) == [0, 1]

    def test_unknown_pid_blocks_at_the_second_look(self, tmp_path):
        watch, look = census(tmp_path), Look((card("A", 0, Process(99, 500)),))
        assert watch.take(look, {}, 0).blocked == {}
        assert watch.take(look, {}, 1).blocked[0].kind == "CannotTell"
        assert watch.take(Look((card("A", 0),)), {}, 2).blocked == {}
        assert watch.take(look, {}, 3).blocked == {}, "it counts from the start"

    def test_unknown_pid_belongs_to_the_job_on_the_gpu(self, tmp_path):
        watch, look = census(tmp_path), Look((card("A", 0, Process(99, 500)),))
        for now in (0, 1):
            report = watch.take(look, {0: ("3.1",)}, now)
        assert report.blocked == {} and report.used == {"3.1": {0: 500}} and report.unclear == {0}

    def test_unknown_pid_on_shared_gpu_belongs_to_no_job(self, tmp_path):
        watch, look = census(tmp_path), Look((card("A", 0, Process(99, 500)),))
        for now in (0, 1):
            report = watch.take(look, {0: ("3.1", "4.1")}, now)
        assert report.used == {} and report.unclear == {0}

    def test_missing_and_broken_cards_are_lost(self, tmp_path):
        watch = census(tmp_path)
        watch.take(Look((card("A", 0), card("B", 1))), {}, 0)
        report = watch.take(Look((card("B", 0)._replace(problem="GPU is lost"),)), {}, 1)
        assert {index: str(why) for index, why in report.blocked.items()} == {
            0: "Lost: it is missing",
            1: "Lost: GPU is lost",
        }

    def test_driver_trouble_blocks_known_gpus(self, tmp_path):
        watch = census(tmp_path)
        assert watch.take(Look(trouble="no library", absent=True), {}, 0) == census(tmp_path).take(
            Look(), {}, 0
        )
        watch.take(Look((card("A", 0),)), {}, 1)
        report = watch.take(Look(trouble="NVML: reload"), {}, 2)
        assert str(report.blocked[0]) == "CannotTell: NVML: reload" and report.trouble

    def test_a_job_on_a_gpu_that_it_was_not_given_blocks_it(self, tmp_path):
        watch = census(tmp_path, p10=OURS)
        look = Look((card("A", 0, Process(10, 500)), card("B", 1, Process(10, 500))))
        assert watch.take(look, {0: ("3.1",)}, 0).blocked == {}, "it may be about to end"
        report = watch.take(look, {0: ("3.1",)}, 1)
        assert str(report.blocked[1]) == ("Unmanaged: gflow, job 3, which was not given this GPU (pid 10)")
        assert report.blocked.keys() == {1} and report.used == {"3.1": {0: 500, 1: 500}}
        watch.ignored = frozenset({(1, 10, 7)})
        assert watch.take(look, {0: ("3.1",)}, 2).blocked == {}

    def test_a_container_counts_to_the_job_that_has_the_gpu(self, tmp_path):
        boxed = EVE._replace(contained=True, started=9)
        look = Look((card("A", 0, Process(10, 500)),))
        watch = census(tmp_path, p10=boxed, p50=OURS)
        assert watch.take(look, {0: ("3.1",)}, 0).used == {"3.1": {0: 500}}
        assert watch.take(look, {0: ("4.1",)}, 0).blocked[0].kind == "Unmanaged"
        older = census(tmp_path, p10=boxed._replace(started=3), p50=OURS)
        assert older.take(look, {0: ("3.1",)}, 0).blocked[0].kind == "Unmanaged"


class TestOwners:
    @pytest.fixture
    def owners(self, tmp_path):
        return Owners(str(tmp_path), trust_pids=True)

    @pytest.fixture
    def spawn(self):
        living = []

        def start(env, code="import time; time.sleep(99)"):
            child = subprocess.Popen(
                [sys.executable, "-c", f"print(flush=True);{code}"], env=env, stdout=subprocess.PIPE
            )
            child.stdout.read(1)
            living.append(child)
            return child

        yield start
        for child in living:
            child.kill()
            child.wait()
            child.stdout.close()

    def test_owner_by_tag(self, owners, spawn, tmp_path):
        assert owners.of(spawn({"GFLOW_RUN": f"{tmp_path}/42.1"}).pid).run == "42.1"

    def test_owner_by_tag_of_an_ancestor(self, owners, spawn, tmp_path):
        code = (
            "import subprocess as s; p = s.Popen(['sleep', '99'], env={}); print(p.pid, flush=True); p.wait()"
        )
        parent = spawn({"GFLOW_RUN": f"{tmp_path}/42.1", "PATH": os.environ["PATH"]}, code)
        child = int(parent.stdout.readline() or parent.stdout.readline())
        assert owners.of(child).run == "42.1"
        os.kill(child, 9)

    def test_tag_of_another_daemon_is_unmanaged(self, owners, spawn, tmp_path):
        owner = owners.of(spawn({"GFLOW_RUN": f"{tmp_path}x/42.1", "X": f"GFLOW_RUN={tmp_path}/1.1"}).pid)
        assert not owner.run and owner.command.startswith(sys.executable) and owner.user

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
    @pytest.mark.parametrize("dumpable", [1, 0])
    def test_tag_of_another_user_is_not_trusted(self, owners, spawn, tmp_path, dumpable):
        """Otherwise a user who shares a GPU could have another job killed for the memory of their own."""
        code = f"import ctypes, os, time; os.setuid(65534); ctypes.CDLL(None).prctl(4, {dumpable}); "
        child = spawn({"GFLOW_RUN": f"{tmp_path}/42.1"}, code + "print(flush=True); time.sleep(99)")
        child.stdout.readline()
        owner = owners.of(child.pid)
        assert (owner.run, owner.user) == ("", pwd.getpwuid(65534).pw_name)

    def test_owner_of_a_process_below_a_shim(self, owners, spawn, tmp_path):
        shim = spawn({"GFLOW_RUN_DIR": str(tmp_path)})
        assert owners.of(shim.pid).run == ""
        owners.keep([])
        (tmp_path / "7_3.2").write_text(f"shim boot 1 {shim.pid} 1\njob boot 1 99 1\n")
        assert owners.of(shim.pid).run == "7_3.2"
        assert owners.shim_of("7_3.2") == shim.pid and owners.shim_of("7_4.2") is None

    def test_a_job_that_has_not_begun_is_still_its_shims_child(self, owners, spawn, tmp_path):
        """Between fork and exec it has the shim's environment."""
        code = "import os; pid = os.fork(); pid and print(pid, flush=True); import time; time.sleep(99)"
        shim = spawn({"GFLOW_RUN_DIR": str(tmp_path)}, code)
        child = int(shim.stdout.readline() or shim.stdout.readline())
        (tmp_path / "7.1").write_text(f"shim boot 1 {shim.pid} 1\njob boot 1 {child} 1\n")
        assert owners.of(child).run == "7.1"
        os.kill(child, 9)

    def test_owner_of_a_dead_pid_is_unknown(self, owners):
        assert not owners.of(2**22 + 5).is_known

    def test_in_a_namespace_of_our_own_a_pid_is_doubted(self, owners, spawn, tmp_path):
        owners._doubtful = True
        assert not owners.of(spawn({"GFLOW_RUN": f"{tmp_path}/42.1"}).pid).is_known


class TestMpsServers:
    """What claims to be an MPS server may use a card unseen: only root's and our own are believed."""

    MPS = "nvidia-cuda-mps-server"

    def of(self, tmp_path, words, program=None, uid=None):
        """The owner of a process that runs, started with these words."""
        process = subprocess.Popen(
            words,
            executable=program or "/bin/sleep",
            preexec_fn=(lambda: (os.setgroups([]), os.setgid(uid), os.setuid(uid)) and None) if uid else None,
        )
        try:
            owner = Owners(str(tmp_path), trust_pids=True).of(process.pid)
            report = Census(GpuSettings(), Owners(str(tmp_path), trust_pids=True), Numbering()).take(
                Look((card("A", 0, Process(process.pid, 70000)),)), {}, 0
            )
        finally:
            process.kill()
            process.wait()
        return owner.is_mps, bool(report.blocked)

    @pytest.fixture
    def program(self):
        """A program of that name, which any user can run."""
        folder = tempfile.mkdtemp()
        os.chmod(folder, 0o755)
        yield shutil.copy("/bin/sleep", f"{folder}/{self.MPS}")
        shutil.rmtree(folder)

    def test_mps_server_name_alone_is_not_trusted(self, tmp_path):
        assert self.of(tmp_path, [self.MPS, "20"]) == (False, True)
        assert self.of(tmp_path, [f"/usr/bin/{self.MPS}", "20"]) == (False, True)

    def test_own_mps_server_is_trusted(self, tmp_path, program):
        assert self.of(tmp_path, [self.MPS, "20"], program) == (True, False)

    @pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
    def test_mps_server_of_another_user_is_not_trusted(self, tmp_path, program):
        assert self.of(tmp_path, [self.MPS, "20"], program, uid=65534) == (False, True)
