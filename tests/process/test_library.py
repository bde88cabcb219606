"""gflow for Python programs: real programs, run beside a real daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.harness import Box


def program(box: Box, text: str, *, timeout: float = 120) -> Any:
    """Run a Python program in the box; what it printed as JSON on its last line."""
    file = box.work / "program.py"
    file.write_text("import json, os, sys, time\nimport gflow\n" + textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(file)],
        env=box.env,
        cwd=box.work,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr + box.log()
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def lab(box: Box) -> Box:
    return box.up("--simulate-gpus", "4x80G", "--cpus", "8")


def test_a_job_from_its_submission_to_its_end(lab: Box) -> None:
    said = program(
        lab,
        """
        os.environ["MINE"] = "set by the program"
        job = gflow.submit(["bash", "-c", "echo $MINE on $CUDA_VISIBLE_DEVICES"], gpus=1,
                           name="one", time="0:30")
        final = job.result(timeout=60)
        said = [job.id, job.state, job.log(), final["name"], final["time_limit_s"], job == gflow.Job(1)]
        print(json.dumps(said))
        """,
    )
    assert said == ["1", "Finished", "set by the program on 0\n", "one", 30, True]


def test_a_text_is_what_gbatch_takes_as_one_word(lab: Box) -> None:
    (lab.work / "job.sh").write_text("# GFLOW --name scripted\necho from a script\n")
    said = program(
        lab,
        """
        a, b = gflow.submit("echo one && echo two"), gflow.submit("job.sh")
        gflow.wait([a, b], timeout=60)
        print(json.dumps([a.log(), b.log(), b.info()["name"]]))
        """,
    )
    assert said == ["one\ntwo\n", "from a script\n", "scripted"]


def test_failures_waits_and_refusals_are_exceptions(lab: Box) -> None:
    said = program(
        lab,
        """
        said = []
        for provoke in (
            lambda: gflow.submit("false").result(),
            lambda: gflow.submit("sleep 60", name="long").wait(timeout=0.1),
            lambda: gflow.submit("true", gpus=99),
            lambda: gflow.submit("true", gpuss=1),
            lambda: gflow.submit("echo {lr}", param={"lr": [1, 2]}),
            lambda: gflow.Job(999).info(),
        ):
            try:
                provoke()
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        (long,) = gflow.jobs(name="long")
        gflow.Job(long["id"]).cancel(now=True)
        said.append(gflow.Job(long["id"]).wait(timeout=30).state)
        print(json.dumps(said))
        """,
    )
    assert said[0].startswith("JobFailed: job 1 ended as Failed with exit code 1")
    assert said[1] == "TimeoutError: job 2 has not ended yet"
    assert "99 GPUs" in said[2]
    assert said[3].startswith("UsageError: unknown option '--gpuss'")
    assert "makes several jobs" in said[4]
    assert said[5] == "NotFound: there is no job 999"
    assert said[6] == "Cancelled"


def test_wrong_arguments_are_named_and_ids_are_waited_for(lab: Box) -> None:
    said = program(
        lab,
        """
        said = []
        for provoke in (
            lambda: gflow.submit([]),
            lambda: gflow.submit(["echo", 3]),
            lambda: gflow.wait([None]),
        ):
            try:
                provoke()
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        job = gflow.submit("true")
        said += [[one.id for one in gflow.wait(jobs)] == [job.id] for jobs in (job, [int(job.id)], job.id)]
        print(json.dumps(said))
        """,
    )
    assert said[0].startswith("UsageError: there is no command")
    assert said[1].startswith("UsageError: a command consists of texts and paths, not of 3")
    assert said[2].startswith("UsageError: None is no job")
    assert said[3:] == [True, True, True]


def test_errors_are_caught_by_their_public_names(lab: Box) -> None:
    said = program(
        lab,
        """
        from gflow.client.refusal import DaemonError
        from gflow.errors import GflowError

        def caught(provoke):
            try:
                provoke()
            except gflow.Error as error:
                assert isinstance(error, GflowError)
                names = ("NotFound", "Refused", "UsageError", "DaemonError", "JobFailed")
                return [name for name in names if isinstance(error, getattr(gflow, name))]

        assert gflow.DaemonError is DaemonError
        print(json.dumps([
            caught(lambda: gflow.Job(999).info()),
            caught(lambda: gflow.submit("true", gpus=99)),
            caught(lambda: gflow.submit("true", gpuss=1)),
            caught(lambda: gflow.submit("false").result()),
        ]))
        """,
    )
    assert said == [["NotFound", "DaemonError"], ["Refused", "DaemonError"], ["UsageError"], ["JobFailed"]]


def test_the_fields_of_a_job(lab: Box) -> None:
    said = program(
        lab,
        """
        code = "from gflow import train; train.report(40, steps=40, loss=0.25); print('a\\\\nb'); exit(3)"
        (job,) = gflow.sweep([sys.executable, "-c", code], gpus=1, name="fields", param={"lr": [0.1]})
        assert job.wait(timeout=60) is job
        asked = [job.name, job.exit_code, job.reason, job.gpus, job.gpu_ids, job.params, job["name"]]
        events = [entry["event"] for entry in job.history()]
        print(json.dumps([*asked, job.tail(1), job.progress["step"], job.metrics["loss"], events]))
        """,
    )
    assert said[:7] == ["fields", 3, "ExitCode:3", 1, [0], {"lr": "0.1"}, "fields"]
    assert said[7:10] == ["b\n", 40, 0.25]
    assert said[10][0] == "submitted" and len(said[10]) >= 2


def test_a_job_is_submitted_again_with_other_options(lab: Box) -> None:
    said = program(
        lab,
        """
        job = gflow.submit("true", gpus=1, time="10", comment="first").wait(timeout=60)
        again = job.redo(gpus=2, time=None)
        after = gflow.submit("true", depends_on=[again])
        info = again.wait(timeout=60).info()
        try:
            job.redo(gpuss=1)
        except gflow.UsageError as error:
            refused = error.hint
        print(json.dumps([info["redone_from"], again.gpus, info["time_limit_s"], info["comment"],
                          after.info()["depends_on"], refused]))
        """,
    )
    assert said == [1, 2, None, "first", [2], "did you mean --gpus?"]


def test_listed_jobs_are_jobs_and_dictionaries(lab: Box) -> None:
    said = program(
        lab,
        """
        job = gflow.submit("sleep 60", name="<b>long</b>", gpus=1)
        ended = gflow.submit("true").wait(timeout=60)
        (listed,) = found = gflow.jobs(name="<b>long</b>")
        assert listed == job and hash(listed) == hash(job) and {job: 1}[listed] == 1
        assert isinstance(listed, gflow.Job) and isinstance(listed, dict) and isinstance(found, list)
        assert json.loads(json.dumps(found))[0]["id"] == 1 == listed["id"] and listed.get("nothing") is None
        while job.state != "Running":
            time.sleep(0.05)
        listed.cancel(now=True)
        assert listed.wait(timeout=60).state == "Cancelled" and listed["state"] != "Cancelled"
        both = gflow.wait([job, ended])
        html = [shown._repr_html_() for shown in (gflow.jobs(all=True)[:5], job, gflow.JobList())]
        print(json.dumps([[one["state"] for one in both], *html]))
        """,
    )
    states, html, single, empty = said
    assert states == ["Cancelled", "Finished"]
    assert "<td>&lt;b&gt;long&lt;/b&gt;</td>" in html and "<td>Finished</td>" in html and "<b>" not in html
    assert "Cancelled" in single and "<table>" in empty


def test_an_ended_job_is_requested_once(lab: Box) -> None:
    said = program(
        lab,
        """
        job = gflow.submit("true").wait(timeout=60)
        from gflow.client import http
        http.get = None
        print(json.dumps([job.state, job.exit_code, job.done]))
        """,
    )
    assert said == ["Finished", 0, True]


def test_a_listing_of_all_jobs_has_the_progress_of_running_ones(lab: Box) -> None:
    said = program(
        lab,
        """
        code = "from gflow import train; import time; train.report(4, steps=8); time.sleep(60)"
        job = gflow.submit([sys.executable, "-c", code])
        while not job.progress:
            time.sleep(0.05)
        print(json.dumps([gflow.jobs(all=every)[0]["progress"]["percent"] for every in (False, True)]))
        """,
    )
    assert said == [50, 50]


def test_a_wait_shows_its_progress(lab: Box) -> None:
    said = program(
        lab,
        """
        import io
        sys.stderr = shown = io.StringIO()
        jobs = gflow.sweep("sleep {s}; exit {s}", param={"s": [0, 1]})
        final = gflow.wait(jobs, timeout=60, progress=True)
        array = gflow.submit("true", array="1-3").wait(60, progress=True)
        code = "from gflow import train; import time; train.report(4, steps=8, loss=0.5); time.sleep(2.5)"
        gflow.submit([sys.executable, "-c", code]).result(60, progress=True)
        try:
            gflow.submit("sleep 60").wait(0.5, progress=True)
        except TimeoutError as error:
            late = str(error)
        try:
            gflow.Job(999).wait(progress=True)
        except gflow.NotFound as error:
            missing = str(error)
        print(json.dumps([[job["exit_code"] for job in final], array.state, shown.getvalue(), late, missing]))
        """,
    )
    codes, array, shown, late, missing = said
    assert codes == [0, 1] and array == "Finished"
    assert f"[{'=' * 20}] 2 of 2 ended (1 Failed)\n" in shown
    assert f"[{' ' * 20}] 0 of 1 ended, 1 Running, step 4/8, 50 %, loss 0.5" in shown
    assert "has not ended yet" in late and missing == "there is no job 999"


def test_a_sweep_and_its_logs_as_they_come(lab: Box) -> None:
    said = program(
        lab,
        """
        jobs = gflow.sweep(["bash", "-c", "echo {lr}; sleep 0.1; echo end"], param={"lr": [0.1, 0.01]})
        print(json.dumps([b"".join(job.follow()).decode() for job in jobs]))
        """,
    )
    assert said == ["0.1\nend\n", "0.01\nend\n"]


def test_a_sweep_is_waited_for_compared_and_redone_as_one(lab: Box) -> None:
    said = program(
        lab,
        """
        import asyncio
        code = "from gflow import train; train.report(1, steps=1, loss={lr}); exit({lr} > 0.3)"
        sweep = gflow.sweep([sys.executable, "-c", code], name="run_{lr}", param={"lr": [0.4, 0.2, 0.1]})
        assert sweep.wait(timeout=60) is sweep
        rows = [[row["id"], row["lr"], row["loss"], row["state"]] for row in sweep.rows()]
        again = sweep.redo_failed(comment="again")
        assert gflow.Sweep("g1") == sweep and again == gflow.Sweep("g4") == [gflow.Job(4)]
        failed = [[job.id, job["reason"]] for job in sweep.failed]
        print(json.dumps([sweep.id, sweep.name, rows, sweep.best().id, failed, again.id,
                          again[0]["redone_from"], again.wait(60, progress=True)[0].exit_code]))
        assert "<td>lr=0.2</td>" in sweep._repr_html_()
        one = gflow.sweep("true", hold=True, param={"x": [1]})
        assert gflow.Sweep(one.id) == one == [gflow.Job(5)] and one.id == "g5"
        assert again[0].redo(hold=True).info()["group_id"] is None
        later = asyncio.run(gflow.aio.sweep("true", hold=True, param={"x": [1, 2]}))
        later.cancel()
        assert [job.state for job in later.wait(30)] == ["Cancelled"] * 2
        try:
            later.redo_failed()
        except gflow.Refused as error:
            assert "none of these jobs" in str(error)
        try:
            gflow.Sweep(99)
        except gflow.NotFound as error:
            assert str(error) == "there is no group g99"
        """,
    )
    assert said == [
        "g1", "run_{lr}",
        [[1, 0.4, 0.4, "Failed"], [2, 0.2, 0.2, "Finished"], [3, 0.1, 0.1, "Finished"]],
        "3", [["1", "ExitCode:1"]], "g4", 1, 1,
    ]  # fmt: skip


def test_without_a_daemon_one_sentence(box: Box) -> None:
    said = program(
        box,
        """
        try:
            gflow.submit("true")
        except Exception as error:
            print(json.dumps([type(error).__name__, error.hint]))
        """,
    )
    assert said == ["Unreachable", "start it with: gflowd up"]


# ---------------------------------------------------------------- functions


def test_functions_run_as_jobs(lab: Box) -> None:
    said = program(
        lab,
        """
        from concurrent.futures import Executor, as_completed
        factor = 7

        def times(x, *, plus=0):
            return x * factor + plus, os.environ["CUDA_VISIBLE_DEVICES"] != "", os.getpid()

        with gflow.Executor(gpus=1) as executor:
            assert isinstance(executor, Executor)
            futures = [executor.submit(times, n, plus=1) for n in range(4)]
            results = [future.result(timeout=60) for future in as_completed(futures)]
        assert all(seen for _, seen, _ in results)
        names = {job["name"] for job in gflow.jobs(all=True)}
        print(json.dumps([sorted(value for value, _, _ in results), os.getpid() in [r[2] for r in results],
                          sorted(names), os.listdir(os.path.expanduser("~/.local/share/gflow/calls"))]))
        """,
    )
    assert said == [[1, 8, 15, 22], False, ["times"], []]


def test_exception_of_a_function_has_its_traceback(lab: Box) -> None:
    said = program(
        lab,
        """
        import threading

        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__("odd")

        def wrong(kind):
            if kind == "odd":
                raise Odd(1, 2)
            if kind == "result":
                return threading.Lock()
            raise KeyError(kind)

        said = []
        with gflow.Executor() as executor:
            for future in [executor.submit(wrong, kind) for kind in ("key", "odd", "result")]:
                error = future.exception(timeout=60)
                said.append([type(error).__name__, str(error), "in wrong" in str(error.__cause__)])
            job = future.job
        said.append(gflow.Job(1).state)
        print(json.dumps(said))
        """,
    )
    assert said[0] == ["KeyError", "'key'", True]
    assert said[1] == ["RemoteError", "Odd: odd could not be sent back", True]
    assert said[2][:2] == ["RemoteError", "the result could not be sent back"]
    assert said[3] == "Failed"


def test_a_worker_that_is_killed_fails_its_future(lab: Box) -> None:
    said = program(
        lab,
        """
        def die():
            os.kill(os.getpid(), 9)

        with gflow.Executor() as executor:
            error = executor.submit(die).exception(timeout=60)
        print(json.dumps([type(error).__name__, error.job["signal"]]))
        """,
    )
    assert said == ["JobFailed", 9]


def test_a_map_is_one_array_with_results_in_order(lab: Box) -> None:
    said = program(
        lab,
        """
        def add(a, b):
            return a + b

        results = gflow.map(add, range(40), range(40))
        listed = {str(job["id"]).partition("_")[0] for job in gflow.jobs(all=True)}
        print(json.dumps([results, sorted(listed)]))
        """,
    )
    assert said == [[2 * n for n in range(40)], ["1"]]


def test_map_in_chunks_follows_the_standard_library(lab: Box) -> None:
    said = program(
        lab,
        """
        from concurrent.futures import ALL_COMPLETED, as_completed, wait

        def add(a, b):
            if a == 7:
                raise ValueError("seven")
            return a + b

        def nap(s):
            import time
            time.sleep(s)
            return s

        with gflow.Executor() as executor:
            assert list(executor.map(add, range(6), range(6), chunksize=4)) == [0, 2, 4, 6, 8, 10]
            tasks = {str(job["id"]) for job in gflow.jobs(all=True)}
            assert tasks == {"1_0", "1_1"}, tasks
            found = []
            try:
                for value in executor.map(add, range(10), range(10), chunksize=5):
                    found.append(value)
            except ValueError as error:
                found.append(str(error))
            assert found == [0, 2, 4, 6, 8, "seven"], found
            assert list(executor.map(add, [], [])) == []
            for wrong in (0, -1):
                try:
                    executor.map(add, [1], [1], chunksize=wrong)
                except ValueError:
                    continue
                raise AssertionError("a chunk of nothing")
            try:
                list(executor.map(nap, [30], timeout=0.1))
            except TimeoutError:
                pass
            else:
                raise AssertionError("no timeout")
            called = []
            futures = [executor.submit(nap, 0) for _ in range(3)]
            futures[0].add_done_callback(called.append)
            done, left = wait(futures, return_when=ALL_COMPLETED)
            assert (len(done), len(left)) == (3, 0)
            assert called == [futures[0]]
            assert {future.result() for future in as_completed(futures)} == {0}
            executor.shutdown(wait=False, cancel_futures=True)
            try:
                executor.submit(nap, 0)
            except RuntimeError:
                print(json.dumps("refused"))
            for job in gflow.jobs():
                job_id = job["id"] if isinstance(job, dict) else job.id
                gflow.Job(job_id).cancel(now=True)
        """,
    )
    assert said == "refused"


def test_cancelling_and_the_executors_contract(lab: Box) -> None:
    said = program(
        lab,
        """
        from concurrent.futures import CancelledError, wait, FIRST_COMPLETED

        executor = gflow.Executor(max_workers=1)
        first = executor.submit(time.sleep, 0.5)
        second = executor.submit(time.sleep, 60)
        assert second.job is None and not second.done()
        assert second.cancel() and second.cancelled()
        wait([first, second])
        called = []
        second.add_done_callback(lambda future: called.append(future.cancelled()))
        third = executor.submit(time.sleep, 60)
        executor.shutdown(wait=False)
        try:
            executor.submit(abs, 1)
        except RuntimeError as error:
            said = str(error)
        while not third.running():
            time.sleep(0.05)
        assert not third.cancel()
        third.job.cancel(now=True)
        error = third.exception(timeout=60)
        print(json.dumps([called, said, type(error).__name__, error.job["state"]]))
        """,
    )
    assert said == [[True], "cannot schedule new futures after shutdown", "JobFailed", "Cancelled"]


def test_futures_survive_a_daemon_that_is_killed(lab: Box) -> None:
    pid = lab.daemon.pid
    program_text = f"""
        import subprocess
        def slow(n):
            time.sleep(0.3)
            return n

        with gflow.Executor(max_workers=2) as executor:
            futures = [executor.submit(slow, n) for n in range(6)]
            futures[0].result(timeout=60)
            os.kill({pid}, 9)
            subprocess.Popen([sys.executable, "-m", "gflow", "gflowd", "run", "--cpus", "8"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            print(json.dumps([future.result(timeout=60) for future in futures]))
        """
    assert program(lab, program_text) == [0, 1, 2, 3, 4, 5]


def test_futures_work_in_an_event_loop(lab: Box) -> None:
    said = program(
        lab,
        """
        import asyncio

        async def main():
            jobs = [await gflow.aio.submit(["sleep", "0.2"]) for _ in range(3)]
            ticks = 0
            waiting = asyncio.ensure_future(gflow.aio.wait_all(jobs))
            while not waiting.done():
                ticks += 1
                await asyncio.sleep(0.01)
            failed = await gflow.aio.submit("false")
            try:
                await gflow.aio.result(failed)
            except gflow.JobFailed as error:
                return [[job["state"] for job in waiting.result()], ticks > 3, error.job["exit_code"]]

        print(json.dumps(asyncio.run(main())))
        """,
    )
    assert said == [["Finished"] * 3, True, 1]


@pytest.mark.slow
def test_a_thousand_functions_and_a_hundred_megabytes(lab: Box) -> None:
    said = program(
        lab,
        """
        def small(n):
            if n % 100 == 13:
                raise ValueError(n)
            return n * n

        def large():
            return bytes(100_000_000)

        with gflow.Executor(cpus=1) as executor:
            big = executor.submit(large)
            futures = executor._submit_all(small, [(n,) for n in range(1000)], {})
            raised = [future.exception(timeout=300) for future in futures]
            errors = [str(error) for error in raised if error]
            good = sum(future.result() for future in futures if not future.exception())
            size = len(big.result(timeout=60))
        print(json.dumps([good, errors, size]))
        """,
        timeout=400,
    )
    bad = [n for n in range(1000) if n % 100 == 13]
    assert said == [sum(n * n for n in range(1000) if n not in bad), [str(n) for n in bad], 100_000_000]
