"""The table of who may do what, and what is shown of others' jobs."""

from __future__ import annotations

import msgspec
import pytest

from gflow.core.model import Job, JobProgress, Moment, Spec
from gflow.core.reasons import parse
from gflow.daemon.api.api_route import ApiRoute
from gflow.daemon.api.permissions import Permission
from gflow.daemon.api.routes import ROUTES
from gflow.daemon.api.visibility import PUBLIC, Viewer
from gflow.daemon.auth.users import JobOwner
from gflow.text.job_page import job_page
from gflow.wire.answers.jobs import job_view
from gflow.wire.encoding import encode
from tests.unit.builders import job_key

SECRET = "hush-hush"
ANN, BOB = 1001, 1002


def test_every_route_has_one_row_with_a_permission():
    routes = {(method, route.path) for route in ROUTES for method in route.methods - {"HEAD"}}
    assert routes == {(route.method, route.path) for route in ROUTES}
    assert all(route.permission in Permission for route in ROUTES)
    assert len(ROUTES) == len(routes)


def test_route_without_a_permission_cannot_be_made():
    async def nothing(request): ...

    with pytest.raises(TypeError, match="permission"):
        ApiRoute("GET", "/jobs/{job}/environment", nothing, answer=None)


def secretive_job() -> Job:
    """A job with a secret in every field of its spec that can hold a text."""
    texts = {}
    for name, kind in Spec.__annotations__.items():
        if name in PUBLIC:
            continue
        if kind == "str":
            texts[name] = SECRET
        elif kind == "tuple[str, ...]":
            texts[name] = (SECRET,)
    texts["parameters"] = ((SECRET, SECRET),)
    return Job(
        key=job_key(7),
        spec=Spec(**texts, name="shown", gpus=3),
        uid=ANN,
        user="ann",
        submitted_at=1.0,
        reason=parse(f"StartFailed: no log at /{SECRET}"),
        attempt=1,
        progress_report=JobProgress(at=1.0, step=3, metrics={SECRET: 1.0}, profile_dir=f"/{SECRET}"),
    )


@pytest.mark.parametrize("names", [True, False])
def test_nothing_but_the_public_is_shown_of_others_jobs(names):
    job = secretive_job()
    shown = Viewer(JobOwner(BOB), sees_all=False, sees_names=names).redact_job(job)
    text = encode(job_view(shown)).decode() + job_page(shown, None, Moment(2.0, 2.0), "") + repr(shown)
    assert SECRET not in text
    assert ("ann" in text) is names
    assert ("shown" in text) is names
    assert shown.spec.gpus == 3
    assert shown.state is job.state


@pytest.mark.parametrize(("uid", "sees_all"), [(ANN, False), (0, True)])
def test_owner_and_root_see_everything(uid, sees_all):
    job = secretive_job()
    assert Viewer(JobOwner(uid), sees_all=sees_all, sees_names=False).redact_job(job) is job


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("job 1 has GPU 0", "job 1 has GPU 0"),
        ("job 2 has GPU 0", "another job has GPU 0"),
        ("job 2_3 has GPU 0", "another job has GPU 0"),
        ("job 9 did not succeed", "another job did not succeed"),
        ("after attempt 1: Preempted: 2", "after attempt 1: Preempted: another job"),
        ("DependencyFailed:1", "DependencyFailed:1"),
        ("Unkillable: job 2", "Unkillable: another job"),
        ("2 jobs come before it", "2 jobs come before it"),
    ],
)
def test_sentence_for_a_private_viewer_names_no_hidden_job(text: str, shown: str) -> None:
    owners = {job_key(1): ANN, job_key(2): BOB, job_key(2, 3): BOB}
    jobs = {key: msgspec.structs.replace(secretive_job(), key=key, uid=uid) for key, uid in owners.items()}
    assert Viewer(JobOwner(ANN), sees_all=False, sees_names=False, job=jobs.get).redact_text(text) == shown
    assert Viewer(JobOwner(ANN), sees_all=False, sees_names=True, job=jobs.get).redact_text(text) == text


@pytest.mark.parametrize(
    ("person", "is_theirs"),
    [
        (JobOwner(ANN, "ann"), True),
        (JobOwner(ANN), True),
        (JobOwner(ANN, "eve"), False),
        (JobOwner(BOB, "ann"), False),
        (JobOwner(BOB), False),
    ],
)
def test_job_belongs_to_uid_and_name(person: JobOwner, is_theirs: bool) -> None:
    job = secretive_job()
    assert person.owns(job) is is_theirs
    assert Viewer(person, sees_all=False, sees_names=True).sees_details(job) is is_theirs
    assert Viewer(person, sees_all=False, sees_names=False).sees_job(job) is is_theirs
