"""gjob profile: jobs that cannot be profiled, and runs that do not answer. Needs no PyTorch."""

from __future__ import annotations

import subprocess
import sys

from tests.harness import Box, wait_until
from tests.process.test_gpus import running
from tests.system import system

# A stand-in for a run: it announces that it takes requests, and answers as the word on its command line says.
RUN = """
import os, sys, time
from gflow.ml.train import profile_files as files
from gflow.ml.train.progress import Reporter
reporter = Reporter(every_s=0)
reporter.profile_dir = folder = files.request_folder()
step = 0
while not os.path.exists(sys.argv[1] + ".end"):
    step += 1
    reporter.note(step, steps=1000)
    if files.read_json(folder, files.REQUEST):
        if sys.argv[1] == "broken":
            files.write_json(folder, files.ANSWER, {"error": f"no CUPTI for {os.stat(folder).st_uid}"})
        elif sys.argv[1] == "ending":
            files.write_json(folder, files.STATE, {"phase": "recording", "done": 1})
            break
    time.sleep(0.02)
"""


def refused(box: Box, *words: str, code: int = 1) -> str:
    done = box.run("gjob", "profile", *words)
    assert done.returncode == code and done.stdout == "" and "Traceback" not in done.stderr, done
    assert not list((box.data / "profiles").glob("*")), "nothing is left behind"
    return str(done.stderr)


def test_profiles_that_cannot_be_made_are_refused(box: Box) -> None:
    (box.work / "run.py").write_text(RUN)
    box.up("--cpus", "8")
    other = box.submit("sleep", "600")
    running(box, other)
    assert "it has reported no step of gflow.train" in refused(box, str(other))
    held = box.submit("--hold", "true")
    assert f"job {held} does not run: it is Hold" in refused(box, str(held))
    array = box.submit("--hold", "--array", "1-3", "true")
    assert "is an array" in refused(box, str(array))
    assert "there is no job 999" in refused(box, "999")
    assert "--steps must be at least 1" in refused(box, str(other), "--steps", "0", code=2)
    assert "its folder does not exist" in refused(box, str(other), "-o", "no/such/trace.json", code=2)
    assert "is a folder" in refused(box, str(other), "-o", ".", code=2)
    assert box.api("GET", f"/jobs/{other}/profile")[0] == 409

    silent, broken, ending = (
        box.submit(sys.executable, "run.py", word) for word in ("silent", "broken", "ending")
    )
    for job in (silent, broken, ending):
        wait_until(lambda job=job: box.job(job)["progress"], what="a step")  # type: ignore[misc]
    place = box.api("GET", f"/jobs/{silent}/profile")[1]
    assert place["job_id"] == silent and place["path"].startswith(f"{box.data}/profiles/{silent}.1.")
    assert place["path"] not in str(box.api("GET", f"/jobs/{silent}")[1]), "only the owner may know it"
    said = refused(box, str(silent), "--timeout", "1")
    assert f"job {silent} did not end a step within 1 s, so no profile was made" in said
    assert "could not make a profile: no CUPTI" in refused(box, str(broken))
    assert f"job {ending} ended before its profile was complete: Finished" in refused(box, str(ending))
    (box.work / "silent.end").touch()
    assert box.finished(silent)["state"] == "Finished"
    assert "does not run: it is Finished" in refused(box, str(silent))


def test_profile_is_for_the_owner_and_root_acts_as_the_owner() -> None:
    with system() as machine:
        machine.up()
        ann = machine.ann
        job = ann.submit("bash", "-c", "echo $GFLOW_PROGRESS; exec sleep 600")
        path = wait_until(lambda: machine.log_of(ann, job).strip())
        env = ann.env | {"GFLOW_PROGRESS": path, "GFLOW_JOB_ID": str(job), "GFLOW_ATTEMPT": "1"}
        # Beside the job, as its owner: Ann's jobs cannot always run this Python.
        run = subprocess.Popen([*ann.prefix, sys.executable, "-c", RUN, "broken"], env=env, cwd="/")
        try:
            wait_until(lambda: machine.box.job(job)["progress"], what="a step")
            for box in (machine.bob, machine.opal):
                done = box.run("gjob", "profile", str(job))
                assert done.returncode == 1 and "belongs to" in done.stderr
            for box in (ann, machine.box):  # root, too, writes to Ann's home with her rights only
                done = box.run("gjob", "profile", str(job))
                assert f"no CUPTI for {ann.person.pw_uid}" in done.stderr, done
        finally:
            run.kill()
            run.wait()
