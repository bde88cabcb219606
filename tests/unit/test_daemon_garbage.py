"""When the daemon collects garbage: never all that waiting jobs consist of."""

import gc

from gflow.daemon.main import _tune_garbage_collector


def test_collector_scans_only_young_objects_by_itself():
    before, scanned = gc.get_threshold(), set()

    def note(phase, info):
        scanned.add(info["generation"])

    gc.callbacks.append(note)
    try:
        _tune_garbage_collector()
        for _ in range(
            250
        ):  # an older generation is due after 200 collections with the threshold of the past
            young = [[] for _ in range(10_100)]
            del young
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        gc.unfreeze()
    assert scanned == {0}
