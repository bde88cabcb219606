"""Active jobs of an account on a cluster: parsing, and who submitted them."""

from __future__ import annotations

from gflow.targets.slurm.commands.queue_listing import ListedJob, Submitter, parse_listing, submitter_of


def test_lines_are_parsed_and_malformed_ones_skipped():
    text = (
        "slurm is in maintenance\n"
        "812|RUNNING|1:05|1:00:00|1|main|gres:gpu:2|node3|(null)|a|b\n"
        "813_[4-9]|PENDING|0:00|UNLIMITED|2|main|N/A|(Resources)|mine: x|sweep\n"
        "814|PENDING|0:00|1:00|x|main|N/A|(Resources)||\n"
    )
    first, second = parse_listing(text)
    assert first == ListedJob(
        "812", "RUNNING", "1:05", "1:00:00", "1", "main", "gres:gpu:2", "node3", "", "a|b"
    )
    assert (second.number, second.nodes, second.gres, second.place) == ("813", 2, "", "(Resources)")
    assert second.comment == "mine: x"


def _listed(id: str, comment: str) -> ListedJob:
    return ListedJob(id, "RUNNING", "0:01", "1:00", "1", "main", "", "node1", comment, "name")


def test_submitter_is_known_by_the_tag_or_by_the_number():
    numbers = {"20": "7"}
    cases = {
        ("812", ""): Submitter("slurm"),
        ("812", "gflow:other:3.1:0"): Submitter("other_gflow"),
        ("812", "gflow:me:3.1:0"): Submitter("gflow", "3"),
        ("812_4", "gflow:me:3.2:0"): Submitter("gflow", "3_4"),
        ("812_4", "gflow:me:3_4.2:0"): Submitter("gflow", "3_4"),
        ("812_[5-9]", "gflow:me:3.2:0"): Submitter("gflow", "3"),
        ("812", "gflow: my own words"): Submitter("slurm"),
        ("20_1", "rewritten by the site"): Submitter("gflow", "7_1"),
    }
    for (id, comment), expected in cases.items():
        assert submitter_of(_listed(id, comment), "me", numbers) == expected, (id, comment)
