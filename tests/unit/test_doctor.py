"""The doctor: every finding is provoked by facts that have it, and a sound machine has none."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import sys

import pytest

from gflow.client.doctor import machine_facts
from gflow.diagnosis import doctor as checks_package
from gflow.diagnosis.doctor.checks import check_all
from gflow.diagnosis.doctor.facts import (
    CudaFacts,
    DaemonFacts,
    Disk,
    DriverFacts,
    Facts,
    GpuFacts,
    HostFacts,
    LibraryFolder,
    Limits,
    Pin,
    PythonFacts,
    Toolkit,
)
from gflow.diagnosis.doctor.job_checks import check_job
from gflow.diagnosis.doctor.job_facts import JobEnvironment
from gflow.diagnosis.doctor.report import Level
from gflow.diagnosis.doctor.self_test import Measurement, SelfTest, SkippedGpu, check_self_test

GPU = GpuFacts(0, "NVIDIA A100-SXM4-80GB", 81920, compute_capability="8.0", ecc_errors=0, pcie_width=16,
               pcie_most=16, has_persistence=True, compute_mode=0, power_limit_w=400,
               power_usual_w=400)  # fmt: skip
DRIVER = DriverFacts("550.54", (12, 4), gpus=(GPU,))
PYTHON = PythonFacts("/venv/bin/python3", "3.12.3",
                     packages={"torch": "2.6.0+cu124", "nvidia_nccl_cu12": "2.21.5"}, torch_cuda="12.4",
                     torch_folders=("/venv/lib",))  # fmt: skip
CUDA = CudaFacts(
    (Toolkit("/usr/local/cuda-12.4", "12.4"),), "/usr/local/cuda/bin/nvcc", "12.4", nccl="2.21.5"
)
DISK = Disk("home", "/home", 200_000, 500_000, 10**6)
HOST = HostFacts(shm_mib=64_000, shm_free_mib=60_000, memory_mib=256_000, available_mib=200_000,
                 limits=Limits(open_files=65536), inotify_watches=524288, inotify_instances=1024,
                 disks=(DISK,), cgroup_version=2, cgroup_controllers=("cpu", "memory", "pids"),
                 may_limit_memory=True, is_clock_synchronized=True)  # fmt: skip
DAEMON = DaemonFacts(is_running=True, version="1", client_version="1")
SOUND = Facts(DRIVER, PYTHON, HOST, DAEMON, CUDA)
WARNING, PROBLEM = Level.WARNING, Level.PROBLEM


def with_gpu(**changes):
    return SOUND._replace(driver=DRIVER._replace(gpus=(GPU._replace(**changes),)))


def with_driver(**changes):
    return SOUND._replace(driver=DRIVER._replace(**changes))


def with_host(**changes):
    return SOUND._replace(host=HOST._replace(**changes))


def with_daemon(**changes):
    return SOUND._replace(daemon=DAEMON._replace(**changes))


def with_python(**changes):
    return SOUND._replace(python=PYTHON._replace(**changes))


def with_libraries(path, *names):
    return with_python(library_folders=(LibraryFolder(path, names),))


def with_limits(**changes):
    return with_host(limits=HOST.limits._replace(**changes))


def with_two_gpus(**changes):
    gpus = (GPU._replace(numa_node=0), GPU._replace(number=1, numa_node=1))
    changes = {"p2p_pairs": 1} | changes
    return SOUND._replace(driver=DRIVER._replace(gpus=gpus, **changes), host=HOST._replace(numa_nodes=2))


def with_old_gpu(capability, torch, cuda):
    python = PythonFacts("/venv/bin/python3", "3.12.3", packages={"torch": torch}, torch_cuda=cuda)
    gpu = GPU._replace(compute_capability=capability)
    return SOUND._replace(python=python, cuda=CudaFacts(),
                          driver=DRIVER._replace(version="580.70", gpus=(gpu,)))  # fmt: skip


CASES = [
    (with_driver(is_absent=True), "driver", WARNING),
    (with_driver(trouble="NVML: Driver/library version mismatch"), "driver", PROBLEM),
    (with_driver(trouble="it has not answered within 2.2 s", is_slow=True), "driver", PROBLEM),
    (with_driver(closed_devices=("/dev/nvidia0",)), "gpu-access", PROBLEM),
    (with_driver(xids=(31, 31, 79)), "xid", WARNING),
    (with_gpu(problem="GPU is lost"), "gpu-lost", PROBLEM),
    (with_gpu(is_remapping_failed=True), "gpu-memory", PROBLEM),
    (with_gpu(ecc_errors=3), "gpu-memory", PROBLEM),
    (with_gpu(is_remapping_pending=True), "gpu-memory", WARNING),
    (with_gpu(throttled=0x40, temperature=92), "gpu-heat", WARNING),
    (with_gpu(throttled=0x80), "gpu-power", WARNING),
    (with_gpu(pcie_width=4), "gpu-pcie", WARNING),
    (with_gpu(has_persistence=False), "gpu-persistence", WARNING),
    (with_gpu(compute_mode=2), "gpu-mode", PROBLEM),
    (with_gpu(compute_mode=3), "gpu-mode", WARNING),
    (with_gpu(power_limit_w=200), "gpu-power", WARNING),
    (with_gpu(foreign=(4242,)), "gpu-foreign", WARNING),
    (with_driver(version="520.10"), "torch-driver", PROBLEM),
    (with_gpu(compute_capability="12.0"), "torch-gpu", PROBLEM),
    (with_old_gpu("7.0", "2.9.0+cu130", "13.0"), "torch-gpu", PROBLEM),
    (with_old_gpu("6.1", "2.8.0+cu128", "12.8"), "torch-gpu", PROBLEM),
    (with_old_gpu("7.0", "2.11.0+cu128", "12.8"), "torch-gpu", PROBLEM),
    (with_python(torch_cuda=""), "torch-cuda", PROBLEM),
    (with_python(executable=""), "python", WARNING),
    (with_python(trouble="exit code 127"), "python", WARNING),
    (with_python(pins=(Pin("torch", "nvidia-cudnn-cu12", "9.1.0.70", "8.9"),)), "torch-requires", WARNING),
    (with_python(pins=(Pin("torch", "triton", "3.2.0", ""),)), "torch-requires", WARNING),
    (with_python(packages={"torch": "2.6.0", "nvidia_nccl_cu11": "2.14"}), "nccl-cuda", WARNING),
    (with_python(packages={"torch": "2.6.0", "nvidia_cudnn_cu11": "8.5"}), "cudnn-cuda", WARNING),
    (with_python(torch_folders=("/home/ann/.local/lib", "/venv/lib")), "torch-shadowed", WARNING),
    (with_libraries("/usr/local/cuda/lib64/stubs", "libcuda.so"), "library-stub", PROBLEM),
    (with_libraries("/usr/local/cuda-11.8/lib64", "libcudart.so.11.0"), "library-cuda", WARNING),
    (with_libraries("/opt/lib", "libnccl.so.2", "libcudnn.so.9"), "library-mix", WARNING),
    (SOUND._replace(cuda=CUDA._replace(nvcc_version="11.8")), "nvcc", WARNING),
    (SOUND._replace(cuda=CUDA._replace(home="/opt/gone", is_home_missing=True)), "cuda-home", WARNING),
    (with_driver(is_absent=True, on_bus=1, has_nouveau=True), "driver", PROBLEM),
    (with_driver(is_absent=True, on_bus=2), "driver", PROBLEM),
    (with_driver(xids=(79,), xid_meanings={79: "fell off the bus"}), "xid", PROBLEM),
    (with_driver(is_mps_running=True), "mps-running", WARNING),
    (with_gpu(is_mig=False, is_mig_next=True), "gpu-mig-pending", WARNING),
    (with_gpu(is_mig=True, is_mig_next=True), "gpu-mig-empty", PROBLEM),
    (with_gpu(has_ecc=False), "gpu-ecc", WARNING),
    (with_gpu(fabric="in progress", links=18, links_up=18), "fabric", PROBLEM),
    (with_gpu(links=18, links_up=16), "nvlink-down", WARNING),
    (with_gpu(links=18, links_up=18, link_errors=5000), "nvlink-errors", WARNING),
    (with_two_gpus(no_p2p=((0, 1, "not supported by the chipset"),)), "p2p", WARNING),
    (with_gpu(numa_node=-1)._replace(host=HOST._replace(numa_nodes=2)), "numa", WARNING),
    (with_host(shm_free_mib=10), "shm", WARNING),
    (with_host(inotify_instances=16), "inotify", WARNING),
    (with_host(available_mib=500), "memory", WARNING),
    (with_host(disks=(DISK._replace(is_writable=False),)), "disk-closed", WARNING),
    (with_host(may_limit_memory=False), "cgroup", WARNING),
    (with_host(has_compiler=False), "compiler", WARNING),
    (with_host(has_home=False), "home", WARNING),
    (with_limits(address_space=16 << 30), "address-space", PROBLEM),
    (with_limits(file_size=1 << 30), "file-size", WARNING),
    (with_daemon(config_notes=("gflow.toml: daemon.port is ignored",)), "config-ignored", WARNING),
    (with_daemon(open_configs=("/etc/gflow/gflow.toml",)), "config-open", PROBLEM),
    (with_daemon(readable_secrets=("/etc/gflow/gflow.toml",)), "config-secret", WARNING),
    (with_daemon(is_running=False, trouble="it takes longer than 1.5 s"), "daemon", PROBLEM),
    (with_daemon(strays=("42",)), "strays", WARNING),
    (with_daemon(has_service=True, service_state="failed"), "service", PROBLEM),
    (with_daemon(kills_at_logout=True), "logout", WARNING),
    (with_daemon(slurm_client="/usr/bin/sbatch", slurm_trouble="is DOWN"), "slurm", PROBLEM),
    (with_daemon(slurm_client="/usr/bin/sbatch", closed_folders=("/nfs/gone",)), "slurm-folder", PROBLEM),
    (SOUND._replace(late=("the host",)), "late", WARNING),
    (with_host(shm_mib=None), "shm", PROBLEM),
    (with_host(shm_mib=64), "shm", WARNING),
    (with_limits(open_files=1024), "open-files", WARNING),
    (with_host(has_infiniband=True, limits=Limits(locked_memory=64 << 10)), "locked-memory", WARNING),
    (with_limits(processes=100), "processes", WARNING),
    (with_host(inotify_watches=8192), "inotify", WARNING),
    (with_host(swap_mib=8000, swap_used_mib=7000), "swap", WARNING),
    (with_host(disks=(DISK._replace(free_mib=100),)), "disk", PROBLEM),
    (with_host(disks=(DISK._replace(free_mib=10_000),)), "disk", WARNING),
    (with_host(disks=(DISK._replace(free_inodes=3),)), "inodes", PROBLEM),
    (with_host(cgroup_controllers=(), may_limit_memory=False), "cgroup", WARNING),
    (with_host(is_clock_synchronized=False), "clock", WARNING),
    (with_host(other_schedulers=("Slurm",)), "scheduler", WARNING),
    (with_daemon(config_error="gflow.toml: unknown setting"), "config", PROBLEM),
    (with_daemon(is_running=False), "daemon", WARNING),
    (with_daemon(is_read_only=True, detail="the disk is full"), "daemon", PROBLEM),
    (with_daemon(version="0"), "version", WARNING),
    (with_daemon(is_simulated=True), "simulated", WARNING),
    (with_daemon(drained="maintenance"), "drained", WARNING),
    (with_daemon(isolation_problem="no cgroup v2"), "device-isolation", WARNING),
    (with_daemon(has_service=True, lingers=False), "linger", WARNING),
    (with_daemon(slurm_client=""), "slurm", PROBLEM),
]  # fmt: skip


JOB = JobEnvironment("42", "Running", pid=4242, gpus=2, own_devices="0,1", used_devices=("0", "1"),
                     cwd="/work", disk=DISK, limits=HOST.limits, python=PYTHON, loaded=("/v/libnccl.so.2",),
                     variables={"VIRTUAL_ENV": "/venv", "LOADEDMODULES": "gcc/12:cuda/12.4",
                                "PYTHONPATH": "/opt/lib/python3.12/site-packages",
                                "CUDA_LAUNCH_BLOCKING": "0"})  # fmt: skip


def with_variables(**changes):
    return JOB._replace(variables=JOB.variables | changes)


JOB_CASES = [
    (JOB._replace(trouble="it is not kept any more"), "job-environment", WARNING),
    (JOB._replace(used_devices=("0", "3")), "job-devices", PROBLEM),
    (JOB._replace(device_lines=("export CUDA_VISIBLE_DEVICES=3",)), "job-devices", PROBLEM),
    (JOB._replace(gpus=0, own_devices="", used_devices=(), submitted_devices="1"), "job-devices", WARNING),
    (JOB._replace(missing_folders=("/venv",)), "job-venv", PROBLEM),
    (with_variables(VIRTUAL_ENV="/other"), "job-venv", WARNING),
    (with_variables(VIRTUAL_ENV="", CONDA_PREFIX="/opt/conda/envs/x"), "job-venv", WARNING),
    (with_variables(PYTHONPATH="/home/ann/lib/python3.9/site-packages"), "job-pythonpath", WARNING),
    (with_variables(LD_LIBRARY_PATH="/opt/conda/envs/other/lib"), "job-library-conda", WARNING),
    (JOB._replace(loaded=("/a/libcudnn.so.8", "/b/libcudnn.so.9")), "job-library-twice", PROBLEM),
    (with_variables(LOADEDMODULES="cuda/11.8"), "job-modules", WARNING),
    (with_variables(NCCL_P2P_DISABLE="1"), "job-settings", WARNING),
    (JOB._replace(disk=None), "job-folder", PROBLEM),
    (JOB._replace(disk=DISK._replace(free_mib=10)), "disk", PROBLEM),
    (JOB._replace(limits=Limits(open_files=1024)), "open-files", WARNING),
    (JOB._replace(python=PYTHON._replace(torch_cuda="")), "torch-cuda", PROBLEM),
    (JOB._replace(python=with_libraries("/opt/lib", "libnccl.so.2").python), "library-mix", WARNING),
]  # fmt: skip


def measured(share, name="bf16", gpus=(0,)):
    return SelfTest((Measurement(name, gpus, value=share * 989, expected=989),))


SELF_TEST_CASES = [
    (measured(0.5), "gpu-test-bf16", WARNING),
    (measured(0.1), "gpu-test-bf16", PROBLEM),
    (measured(0.5, "all_reduce", (0, 1)), "gpu-test-all-reduce", WARNING),
    (SelfTest((Measurement("fp32", (0,), error="wrong results"),)), "gpu-test-fp32", PROBLEM),
    (SelfTest(trouble="GPU 0: bf16 matrix product takes longer than 15 s"), "gpu-test-failed", PROBLEM),
]  # fmt: skip


def findings_in_source() -> set[tuple[str, int]]:
    """Every place of the checks that makes a warning or a problem: module and line."""
    found = set()
    for module in pkgutil.iter_modules(checks_package.__path__):
        loaded = importlib.import_module(f"{checks_package.__name__}.{module.name}")
        tree = ast.parse(open(loaded.__file__).read())
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        found |= {
            (module.name, call.lineno)
            for call in calls
            if isinstance(call.func, ast.Name) and call.func.id in ("warning", "problem")
        }
    return found


def record_findings(monkeypatch) -> set[tuple[str, int]]:
    """Note from which line each warning and problem comes."""
    seen = set()
    for module in pkgutil.iter_modules(checks_package.__path__):
        loaded = importlib.import_module(f"{checks_package.__name__}.{module.name}")
        for name in ("warning", "problem"):
            if module.name != "report" and hasattr(loaded, name):
                monkeypatch.setattr(loaded, name, recorder(getattr(loaded, name), module.name, seen))
    return seen


def recorder(function, module, seen):
    def call(*arguments):
        seen.add((module, sys._getframe(1).f_lineno))
        return function(*arguments)

    return call


def test_every_finding_has_a_case_that_provokes_it(monkeypatch) -> None:
    seen = record_findings(monkeypatch)
    for facts, _, _ in CASES:
        check_all(facts)
    for job, _, _ in JOB_CASES:
        check_job(job, SOUND)
    for test, _, _ in SELF_TEST_CASES:
        list(check_self_test(test))
    assert len(seen) > 90
    assert findings_in_source() - seen == set()


def test_sound_machine_has_no_findings() -> None:
    assert [one for one in check_all(SOUND) if one.level is not Level.OK] == []


def test_missing_extras_are_one_line_that_is_ok() -> None:
    facts = SOUND._replace(missing_extras=("spy", "tui"), extras_command="pip install '.[spy,tui]'")
    (found,) = [one for one in check_all(facts) if one.name == "extras"]
    assert found.level is Level.OK and "tui (gflow top); pip install '.[spy,tui]'" in found.text
    assert not [one for one in check_all(SOUND) if one.name == "extras"]


def test_extras_that_are_not_installed_are_found(monkeypatch) -> None:
    monkeypatch.setattr(machine_facts, "find_sampler", lambda: "")
    monkeypatch.setattr(machine_facts, "find_spec", lambda name: None)
    assert machine_facts.missing_extras() == ("spy", "tui")
    monkeypatch.setattr(machine_facts, "find_sampler", lambda: "/usr/bin/py-spy")
    assert machine_facts.missing_extras() == ("tui",)


def test_simulated_gpus_on_a_machine_without_gpu_are_one_line_without_fix() -> None:
    facts = with_driver(is_absent=True, gpus=())._replace(
        daemon=DAEMON._replace(is_simulated=True, gpu_count=4)
    )
    found = [one for one in check_all(facts) if one.name in ("driver", "simulated")]
    assert [one.text for one in found] == ["4 simulated GPUs; this machine has no NVIDIA GPU"]
    assert found[0].level is Level.OK and not found[0].fix


def test_sound_machine_with_two_gpus_has_no_findings() -> None:
    found = check_all(with_two_gpus())
    assert [one for one in found if one.level is not Level.OK] == []
    assert {"p2p", "numa"} <= {one.name for one in found}


@pytest.mark.parametrize(
    ("facts", "name", "level"), CASES, ids=[f"{case[1]}-{case[2].name}" for case in CASES]
)
def test_finding_is_provoked_alone_and_has_a_fix(facts: Facts, name: str, level: Level) -> None:
    (found,) = [one for one in check_all(facts) if one.level is not Level.OK]
    assert (found.name, found.level) == (name, level)
    assert found.fix


def test_sound_environment_of_a_job_has_no_findings() -> None:
    assert [one for one in check_job(JOB, SOUND) if one.level is not Level.OK] == []
    assert "as submitted" in check_job(JOB._replace(pid=None), SOUND)[0].text


@pytest.mark.parametrize(("job", "name", "level"), JOB_CASES, ids=[case[1] for case in JOB_CASES])
def test_finding_about_a_job_is_provoked_alone_and_has_a_fix(job, name: str, level: Level) -> None:
    (found,) = [one for one in check_job(job, SOUND) if one.level is not Level.OK]
    assert (found.name, found.level) == (name, level)
    assert found.fix


@pytest.mark.parametrize(("test", "name", "level"), SELF_TEST_CASES)
def test_finding_of_the_self_test_is_provoked_alone_and_has_a_fix(test, name: str, level: Level) -> None:
    (found,) = [one for one in check_self_test(test) if one.level is not Level.OK]
    assert (found.name, found.level) == (name, level)
    assert found.fix


def test_good_and_unknown_figures_and_skipped_gpus_are_no_findings() -> None:
    test = measured(0.7)._replace(skipped=(SkippedGpu(1, "job 42 has it"),))
    unknown = SelfTest((Measurement("bf16", (0,), value=300.0),))
    found = [*check_self_test(test), *check_self_test(unknown)]
    assert {one.level for one in found} == {Level.OK}
    assert "job 42 has it" in found[0].text and "70% of 989" in found[1].text


def test_doctor_prints_json_and_its_exit_code_says_problem(capsys, monkeypatch) -> None:
    from gflow.cli.tools import doctor
    from gflow.client.doctor import examination

    monkeypatch.setattr(examination, "collect", lambda *_: with_host(shm_mib=None))
    assert doctor.run(["--json", "--quiet"]) == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert check["name"] == "shm" and check["level"] == "problem" and check["fix"]


def test_doctor_page_fits_80_columns(capsys, monkeypatch) -> None:
    from gflow.cli.tools import doctor
    from gflow.client.doctor import examination

    monkeypatch.setattr(examination, "collect", lambda *_: with_driver(version="520.10"))
    doctor.run([])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_facts_of_this_machine_are_collected() -> None:
    from gflow.client.doctor.machine_facts import collect

    facts = collect()
    assert facts.host.memory_mib > 0 and facts.host.disks and facts.python.executable
