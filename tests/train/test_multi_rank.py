"""Runs of several ranks (gloo): stopped or killed and resumed, the same curve; no rank hangs."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gflow.cloud import Aws, watch  # noqa: E402
from gflow.errors import GflowError  # noqa: E402
from gflow.ml.train.checkpoint.checkpointer import Checkpointer, verify  # noqa: E402
from gflow.train import Run  # noqa: E402
from tests.harness import wait_until  # noqa: E402
from tests.metadata import Server  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402
from tests.train.small import curve, train  # noqa: E402

WORLD = 4


def part(folder: Path, interrupt=None, strategy: str = "auto", world: int = WORLD) -> list[int]:
    """One attempt of all ranks, each with a file for its losses."""

    def act(rank: int) -> None:
        stopped = train(
            folder / "c",
            folder / f"said{rank}",
            (lambda run: interrupt(rank, run)) if interrupt else None,
            strategy=strategy,
            batch=1,
        )
        sys.exit(75 if stopped else 0)

    return ranks(world, act)


def curves(folder: Path, world: int = WORLD) -> list[dict[str, str]]:
    return [curve(folder / f"said{rank}") for rank in range(world)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("whole")
    assert part(folder) == [0] * WORLD
    return curves(folder)


def notice() -> None:
    """A cloud's metadata service says that the machine goes; its watcher makes the stop file."""
    server = Server()
    server.take()
    assert watch([Aws(server.base)], lambda seconds: False, 0.01)
    server.close()
    open(os.environ["GFLOW_STOP_FILE"], "w").close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, 0])
def test_signal_to_one_rank_stops_all(tmp_path, whole, number, monkeypatch):
    """TERM reaches one rank and all stop after the same step; a rank that is killed takes the others down.
    0: a spot notice.
    """
    monkeypatch.setenv("GFLOW_STOP_FILE", str(tmp_path / "stop"))
    dice = random.Random(number)
    hits = sorted(dice.sample(range(10), 3))
    for step in hits:
        victim = dice.randrange(WORLD)

        def hit(rank: int, run, step=step, victim=victim) -> None:
            if (rank, run.place.step) == (victim, step):
                os.kill(os.getpid(), number) if number else notice()

        codes = part(tmp_path, hit)
        (tmp_path / "stop").unlink(missing_ok=True)
        if number != signal.SIGKILL:
            assert codes == [75] * WORLD
        else:
            assert codes[victim] == -signal.SIGKILL and 0 not in codes
    assert part(tmp_path) == [0] * WORLD
    assert curves(tmp_path) == whole


def test_wrapping_a_model_draws_no_random_numbers(tmp_path):
    def act(rank: int) -> None:
        run = Run(tmp_path / "c", device="cpu")
        net = torch.nn.Linear(2, 1)
        before = torch.get_rng_state()
        run.model(net)
        assert torch.equal(torch.get_rng_state(), before)
        run.close()

    assert ranks(2, act) == [0, 0]


def test_shards_are_saved_and_resumed(tmp_path):
    """FSDP: each rank saves its part, and gets it back."""
    (tmp_path / "w").mkdir()
    assert part(tmp_path / "w", strategy="fsdp", world=2) == [0, 0]

    def hit(rank: int, run) -> None:
        if run.place.step == 6:
            run.stop.ask("test")

    assert part(tmp_path, hit, strategy="fsdp", world=2) == [75, 75]
    assert part(tmp_path, strategy="fsdp", world=2) == [0, 0]
    assert curves(tmp_path, 2) == curves(tmp_path / "w", 2)


def test_a_step_has_as_many_samples_on_another_number_of_ranks(tmp_path, capfd):
    """Two ranks, then one: the steps stay, and with them the curve's length."""

    def hit(rank: int, run) -> None:
        if run.place.step == 3:
            run.stop.ask("test")

    assert part(tmp_path, hit, world=2) == [75, 75]
    assert "gflow: effective batch 4 = 2 processes x 1 samples x 2 batches" in capfd.readouterr().err
    assert part(tmp_path, world=1) == [0]
    assert "gflow: effective batch 4 = 1 process x 1 samples x 4 batches, as before" in capfd.readouterr().err
    assert (tmp_path / "c/latest").resolve().name.startswith("step-00000021")


@pytest.mark.parametrize("own", [True, False])
def test_no_thread_of_a_group_outlives_it(tmp_path, own):
    """One that is at work while Python ends has the process aborted: the exit code, also 75, is lost."""

    def threads() -> int:
        names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
        return sum(name.startswith("pt_gloo_runloop") for name in names)

    def act(rank: int) -> None:
        if not own:  # the script's own group is left alone
            torch.distributed.init_process_group("gloo")
        keeper = Checkpointer(tmp_path)
        keeper.save(1, {}, {"rank": rank})
        wait_until(lambda: threads() == 6)  # two for each group
        keeper.close()
        assert verify(str(tmp_path / "latest"))["step"] == 1
        assert threads() == (0 if own else 2)
        assert torch.distributed.is_initialized() is not own

    assert ranks(2, act) == [0, 0]


SCRIPT = """
import sys
import time
from pathlib import Path
from tests.train.small import train
import os
rank = os.environ["RANK"]
print("ready", flush=True)
pause = lambda run: __import__("time").sleep(float(sys.argv[2]))
sys.exit(75 if train(Path(sys.argv[1]) / "c", Path(sys.argv[1]) / f"said{rank}", pause, batch=1) else 0)
"""


@pytest.mark.slow
def test_under_gflow_launch(tmp_path, whole, box):
    """The command itself: KILL of one rank, then TERM to the launcher, then to the end."""
    import subprocess

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])

    def launch(pause: str):
        words = ["launch", "--processes", str(WORLD), "--logs", "logs", str(script), str(tmp_path), pause]
        return subprocess.Popen(
            [f"{Path(sys.executable).parent}/gflow", *words],
            cwd=tmp_path,
            env=box.env | {"PYTHONPATH": root},
            stderr=subprocess.PIPE,
            text=True,
        )

    def at_step(count: int) -> bool:
        said = tmp_path / "said2"
        return said.exists() and len(said.read_text().splitlines()) >= count

    first = launch("0.2")
    wait_until(lambda: at_step(5), 120)
    victim = next(pid for pid in box.processes() if b"\0RANK=2\0" in _environ(pid))
    os.kill(victim, signal.SIGKILL)
    _, said = first.communicate(timeout=30)
    assert first.returncode == 137 and "rank 2 was killed by SIGKILL" in said
    before = len((tmp_path / "said2").read_text().splitlines())
    second = launch("0.2")
    wait_until(lambda: at_step(before + 3), 120)
    second.terminate()
    assert second.wait(30) == 75
    assert launch("0").wait(120) == 0
    assert curves(tmp_path) == whole


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("launched_with", ["", "60"])
def test_rank_that_waits_longer_than_the_timeout_fails(tmp_path, monkeypatch, launched_with):
    """Rank 1 is late by four seconds. `gflow launch --nccl-timeout` overrides Run(timeout_s=2)."""
    monkeypatch.setenv("GFLOW_NCCL_TIMEOUT", launched_with)

    def act(rank: int) -> None:
        run = Run(device="cpu", timeout_s=2)
        run.ranks.is_any(False)
        begun = time.monotonic()
        try:
            if rank == 1:
                time.sleep(4)
            run.ranks.is_any(False)
        except RuntimeError:
            (tmp_path / f"failed-{rank}").write_text(str(time.monotonic() - begun))
            os._exit(1)
        run.close()

    codes = ranks(2, act)
    if launched_with:
        assert codes == [0, 0]
    else:
        assert codes[0] == 1 and float((tmp_path / "failed-0").read_text()) > 1


def test_first_rank_goes_first_however_long_it_takes(tmp_path):
    """It prepares data for longer than a rank may wait for the others, and the others find them."""

    def act(rank: int) -> None:
        run = Run(device="cpu", timeout_s=1)
        with run.ranks.rank_zero_first():
            if not (tmp_path / "data").exists():
                time.sleep(3)
                (tmp_path / "data").write_text(str(rank))
            assert (tmp_path / "data").read_text() == "0"
        (tmp_path / f"prepared-{rank}").touch()
        run.ranks.barrier()
        assert len(list(tmp_path.glob("prepared-*"))) == run.ranks.world == 3
        with run.ranks.rank_zero_first():  # a second time in the same group
            pass
        run.close()

    assert ranks(3, act) == [0, 0, 0]


def test_first_rank_of_each_node_goes_first(tmp_path):
    """Two nodes of two ranks without a common disk."""

    def act(rank: int) -> None:
        os.environ["LOCAL_RANK"] = str(rank % 2)
        run = Run(device="cpu")
        node = tmp_path / f"node-{rank // 2}"
        with run.ranks.rank_zero_first(local=True):
            if not node.exists():
                time.sleep(rank / 4)
                node.write_text(str(rank))
        run.close()

    assert ranks(4, act) == [0, 0, 0, 0]
    assert [(tmp_path / f"node-{node}").read_text() for node in (0, 1)] == ["0", "2"]


def test_error_of_the_first_rank_ends_the_wait_of_the_others(tmp_path):
    def act(rank: int) -> None:
        run = Run(device="cpu")
        with pytest.raises(OSError if rank == 0 else GflowError) as caught, run.ranks.rank_zero_first():
            assert rank == 0
            raise OSError("no such data set")
        (tmp_path / f"failed-{rank}").write_text(str(caught.value))
        run.close()

    assert ranks(2, act) == [0, 0]
    assert (tmp_path / "failed-0").read_text() == "no such data set"
    assert "failed in rank_zero_first" in (tmp_path / "failed-1").read_text()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_model_is_unwrapped(strategy):
    def act(rank: int) -> None:
        run = Run(device="cpu", strategy=strategy)
        net = torch.nn.Sequential(torch.nn.Linear(2, 2))
        model = run.model(net)
        assert run.unwrap(model) is net
        assert run.unwrap(torch.compile(model)) is net
        if strategy == "ddp" and run.ranks.world > 1:
            assert run.unwrap(torch.nn.parallel.DistributedDataParallel(torch.compile(net))) is net
        run.close()

    assert ranks(2, act) == [0, 0] and ranks(1, act) == [0]
