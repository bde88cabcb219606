"""The cost of many event listeners: one read for all of them, until the next event."""

from gflow.daemon.loop import wakeups as module
from gflow.daemon.loop.wakeups import Wakeups


def test_shared_read_happens_once():
    news, read = Wakeups(), []
    for _ in range(500):
        assert news.shared(7, lambda: read.append(1) or "lines") == "lines"
    assert read == [1]
    news.wake()
    news.shared(7, lambda: read.append(2))
    assert read == [1, 2]


def test_reads_of_the_past_use_bounded_memory():
    news = Wakeups()
    for place in range(10 * module.MAX_SHARED):
        assert news.shared(place, lambda place=place: place) == place
    assert len(news._read) <= module.MAX_SHARED
