import pytest

from gflow.cli.daemon.logind import (
    ENDED,
    NO_MANAGER,
    UNREACHABLE,
    USER_SCOPE,
    Facts,
    Plan,
    decide,
    facts,
    kills,
)

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
SESSION_V1 = "9:name=systemd:/user.slice/user-1000.slice/session-c2.scope\n0::/\n"
MANAGER = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-term.scope\n"
SERVICE = "0::/system.slice/gflowd.service\n"
KEPT = Plan(before=USER_SCOPE)


@pytest.mark.parametrize(
    ("given", "plan"),
    [
        # Nothing that could end it.
        (Facts(has_logind=False, cgroup="0::/\n"), Plan()),
        (Facts(cgroup=SERVICE, kills=True), Plan()),
        (Facts(is_root=True, cgroup=SESSION, kills=True), Plan()),
        # An ordinary login over ssh.
        (Facts(cgroup=SESSION), Plan()),
        (Facts(cgroup=SESSION, socket_goes=True), Plan(note=UNREACHABLE)),
        (Facts(cgroup=SESSION, kills=True, socket_goes=True), Plan(note=ENDED)),
        (Facts(cgroup=SESSION_V1, kills=True), Plan(note=ENDED)),
        # A manager that ends with the last session keeps nothing: without lingering it is no help.
        (Facts(cgroup=SESSION, kills=True, has_manager=True), Plan(note=ENDED)),
        (Facts(cgroup=SESSION, has_manager=True), Plan()),
        # A user with lingering.
        (Facts(cgroup=SESSION, lingers=True, kills=True, has_manager=True), KEPT),
        (Facts(cgroup=SESSION, lingers=True, has_manager=True, socket_goes=True), KEPT),
        (Facts(cgroup=SESSION, lingers=True, kills=True), Plan(note=NO_MANAGER)),
        (Facts(cgroup=SESSION, lingers=True, socket_goes=True), Plan()),
        # A terminal on a desktop, or a service of the user's own.
        (Facts(cgroup=MANAGER), Plan(note=ENDED)),
        (Facts(cgroup=MANAGER, lingers=True, kills=True), Plan()),
    ],
)
def test_daemon_start_plan_for_login_sessions(given, plan):
    assert decide(given) == plan


DELIVERED = "[Login]\n#NAutoVTs=6\n#KillUserProcesses=no\n#KillOnlyUsers=\n#KillExcludeUsers=root\n"


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        ([], False),
        ([DELIVERED], False),
        ([DELIVERED.replace("#KillUserProcesses=no", "#KillUserProcesses=yes")], True),
        ([DELIVERED.replace("#KillUserProcesses=no", "KillUserProcesses=yes")], True),
        ([DELIVERED, "[Login]\nKillUserProcesses = yes\n"], True),
        (["KillUserProcesses=yes\n", "KillUserProcesses=no\n"], False),
        (["KillUserProcesses=1\nKillExcludeUsers=root ann\n"], False),
        (["KillUserProcesses=on\nKillOnlyUsers=bob\n"], False),
        (["KillUserProcesses=true\nKillOnlyUsers=bob ann\n"], True),
        (["KillUserProcesses=perhaps\n"], False),
        (["\x00\xff=\n\nKill=\n"], False),
    ],
)
def test_logind_kill_setting_applies_to_user(texts, answer):
    assert kills(texts, "ann") is answer


def test_root_is_excluded_from_logind_kill_by_default():
    assert not kills(["KillUserProcesses=yes\n"], "root")
    assert kills(["KillUserProcesses=yes\nKillExcludeUsers=\n"], "root")


def test_facts_of_this_machine_give_a_plan():
    assert isinstance(decide(facts("/nowhere")), Plan)
