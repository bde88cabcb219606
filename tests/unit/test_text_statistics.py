from gflow.text.statistics import FIGURES, statistics_page
from gflow.wire.answers.statistics import StatsAnswer, TopJob

NAME = "a-long-name-of-a-training-run-of-2026"


def page(width):
    top = TopJob(id=1, name=NAME, user="ann", state="Finished", runtime_secs=5.0, gpus=1)
    about = {"user": "ann", "since": None, "simulated": False, "left_out_jobs": 0, "top_jobs": [top]}
    figures = dict.fromkeys(FIGURES, 0) | {"by_user": [], "by_project": []}
    return statistics_page(StatsAnswer(**about, **figures), width)


def test_names_are_cut_where_the_terminal_ends_and_nowhere_else():
    assert NAME in page(0), "a pipe"
    assert NAME in page(200)
    narrow = page(60)
    assert NAME not in narrow and NAME[:8] in narrow
    assert max(map(len, narrow.partition("Longest jobs\n")[2].splitlines())) <= 60
