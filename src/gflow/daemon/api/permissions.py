"""Permission checks. The permission of each route is declared in `daemon.api.routes`.

A caller is identified by the uid that the kernel reports for the socket's peer, or by a token. In user mode
`routes` admits only the daemon's owner and root, who may use every route.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import wraps

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.model import Job
from gflow.daemon.auth.submission_rules import Rights
from gflow.daemon.auth.users import JobOwner, is_member, job_owner_of, user_name, why_unusable
from gflow.daemon.context import context_of
from gflow.errors import Forbidden, no_job
from gflow.privileged.accounts import why_below


class Permission(Enum):
    """Which callers may use a route. The values are printed in the docs and in OpenAPI."""

    ANYONE = "every user; of other users' jobs only name, user, state and resources are shown"
    OWNER = "the job's owner, and root"
    OWNER_ONLY = "the job's owner, because the new job runs as the caller"
    OWNER_OR_OPERATOR = "the job's owner, operators, root"
    OPERATOR = "operators and root"
    NOT_ROOT = "every user except root, for themselves"
    SELF = "every user for their own; root for all users"


Handler = Callable[[Request], Awaitable[Response]]


def enforce(permission: Permission, handler: Handler) -> Handler:
    """Wrap a handler so that it checks the permission of its route.

    OPERATOR is checked here. The other permissions depend on the jobs of the request: the handler calls
    `check`, which reads the permission from the scope.
    """

    @wraps(handler)
    async def endpoint(request: Request) -> Response:
        request.scope["permission"] = permission
        if permission is Permission.OPERATOR and not is_operator(request):
            group = context_of(request).settings.operators
            raise Forbidden("only operators may do this", hint=f"operators are root and the group {group}")
        return await handler(request)

    return endpoint


def is_operator(request: Request) -> bool:
    """Whether the caller is an operator: root or, in system mode, a member of `people.operators`.

    In user mode the daemon's owner is an operator.
    """
    state, settings = request.scope["state"], context_of(request).settings
    if not settings.is_system:
        return state["uid"] in (0, os.getuid())
    return state["uid"] == 0 or is_member(settings.operators, state["groups"])


def caller_as_owner(request: Request) -> JobOwner:
    """The caller, to be compared with the owners of jobs. In user mode the uid alone identifies it."""
    uid = request.scope["state"]["uid"]
    return job_owner_of(uid) if context_of(request).settings.is_system else JobOwner(uid)


def sees_names(request: Request) -> bool:
    """Whether the caller may know that other users have jobs, and their names (`people.privacy`)."""
    settings = context_of(request).settings
    is_open = not settings.is_system or not settings.is_private
    return is_open or request.scope["state"]["uid"] == 0 or is_operator(request)


def may_change_others_jobs(request: Request) -> bool:
    """Whether the caller may change other users' jobs: an operator in system mode."""
    return context_of(request).settings.is_system and is_operator(request)


def rights_of(request: Request) -> Rights:
    """The limits on what the caller may request in a submission or an update."""
    settings, uid = context_of(request).settings, request.scope["state"]["uid"]
    return Rights(settings.config, uid, settings.is_system and not is_operator(request))


def acting_user(request: Request) -> str:
    """The caller's user name. Raises Forbidden if the account may not run jobs now (system mode)."""
    uid, settings = request.scope["state"]["uid"], context_of(request).settings
    least = settings.config["people.min_uid"]
    if settings.is_system and (why := why_unusable(uid) or why_below(uid, least)):
        raise Forbidden(f"this is refused: {why}", hint="ask the administrator of the machine")
    return user_name(uid)


def submitting_user(request: Request) -> str:
    """The caller's user name. Raises Forbidden if no jobs may run as this user."""
    if context_of(request).settings.is_system and request.scope["state"]["uid"] == 0:
        raise Forbidden("the daemon for all users runs no job as root", hint="submit it as another user")
    return acting_user(request)


def may_ask_cluster(request: Request, job: Job) -> bool:
    """Whether the caller may have a cluster asked about this job: that is done with the keys of its owner."""
    is_system = context_of(request).settings.is_system
    return not is_system or request.scope["state"]["uid"] == 0 or caller_as_owner(request).owns(job)


def check_local(request: Request, message: str) -> None:
    """Refuse a request that came over TCP: a stolen token or session could otherwise renew itself."""
    if not request.scope["state"]["pid"]:
        raise Forbidden(message)


def check(request: Request, jobs: list[Job]) -> None:
    """Raise unless the permission of the route covers all of these jobs for the caller.

    With private jobs the error is the one for a job that does not exist.
    """
    uid, permission = request.scope["state"]["uid"], request.scope["permission"]
    owner = caller_as_owner(request)
    foreign = [job for job in jobs if not owner.owns(job)]
    if not foreign or not context_of(request).settings.is_system:
        return  # user mode: only the owner and root have jobs, and the engine checks between them
    if permission is Permission.OWNER and uid == 0:
        return
    if permission is Permission.OWNER_OR_OPERATOR and is_operator(request):
        return
    if not sees_names(request):
        raise no_job(foreign[0].label)
    raise Forbidden(f"job {foreign[0].label} belongs to {foreign[0].user}")
