"""Checkpoint directories behind a URL: an S3 server, and fsspec's own file systems for many processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import fsspec  # noqa: E402

from gflow.errors import Refused  # noqa: E402
from gflow.ml.train.checkpoint.checkpoint_dir import CheckpointError, Superseded  # noqa: E402
from gflow.ml.train.checkpoint.remote_dir import RemoteDirectory  # noqa: E402
from gflow.train import Checkpointer, Run  # noqa: E402
from tests.train.multi_rank import ranks  # noqa: E402
from tests.train.small import curve, net, train  # noqa: E402
from tests.train.test_sharded_checkpoints import attempt  # noqa: E402


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder for local copies; every test has to leave it empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert not [name for name in os.listdir(folder) if "checkpoints" in name]


@pytest.fixture(scope="module")
def s3():
    """The URL of a bucket on a server of this process."""
    from moto.server import ThreadedMotoServer

    given = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**given, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("runs")
        yield "s3://runs"
    server.stop()


@pytest.fixture(scope="module")
def gs():
    """The same, of Google's API."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="needs gcp-storage-emulator")
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="runs")
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server._api._httpd.server_port}")
        # The emulator has no gRPC, by which gcsfs asks for the type of a bucket.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        pytest.importorskip("gcsfs", reason="needs gcsfs")
        yield "gs://runs"
    server.stop()


def names(url: str) -> list[str]:
    files = fsspec.filesystem(url.partition("://")[0])
    files.invalidate_cache()
    return sorted(name.rpartition("/")[2] for name in files.ls(url, detail=False))


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_run_in_a_bucket_stops_and_resumes_equal(kind, tmp_path, request):
    url = request.getfixturevalue(kind)
    assert train(tmp_path / "whole", tmp_path / "said-whole") == ""
    said = tmp_path / "said"

    def term(run) -> None:
        if run.place.step in (3, 7):
            os.kill(os.getpid(), signal.SIGTERM)

    assert train(f"{url}/one", said, term) == "TERM"
    assert train(f"{url}/one", said, term) == "TERM"
    assert train(f"{url}/one", said) == ""
    assert curve(said) == curve(tmp_path / "said-whole")
    assert names(f"{url}/one") == ["latest", "owner.json", "step-00000008", "step-00000012", "step-00000015"]
    assert fsspec.filesystem(kind).cat_file(f"{url}/one/latest") == b"step-00000015"
    with pytest.raises(CheckpointError, match=r"NoSuchBucket|not exist|nowhere"):
        Checkpointer(f"{kind}://nowhere/run").save(1, {"a": 1}, wait=True)


def shared(tmp_path: Path) -> str:
    """A folder behind a URL that several processes can use."""
    return f"file://{tmp_path}/remote"


def test_any_number_of_processes_resumes_remote_shards(tmp_path):
    assert attempt(1, tmp_path / "whole", tmp_path / "whole.pt") == [0]
    folder, out = shared(tmp_path), tmp_path / "end.pt"
    assert attempt(2, folder, out, stop_at=1) == [75, 75]
    assert attempt(1, folder, out, stop_at=3) == [75]
    assert attempt(2, folder, out) == [0, 0]
    (_, expected), (began, found) = torch.load(tmp_path / "whole.pt"), torch.load(out)
    assert 3 <= began < 6
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-7)


def test_damaged_and_unfinished_checkpoints_are_passed_over(tmp_path, capsys):
    url, there = shared(tmp_path), tmp_path / "remote"
    assert train(url, tmp_path / "said", keep=3) == ""
    (there / "step-00000015/state.pt").write_bytes(b"damaged")
    unfinished = there / "step-00000099"
    unfinished.mkdir()
    (unfinished / "state.pt").write_bytes(b"half")
    keeper = Checkpointer(url)
    loaded = keeper.load()
    assert loaded is not None and loaded.step == 12
    assert "step-00000015/state.pt does not match its checksum" in capsys.readouterr().err
    keeper.drop_fetched()
    keeper.save(20, {"a": 1}, wait=True)
    keeper.close()
    # The damaged one does not count as kept, the unfinished one is removed.
    assert names(url) == ["latest", "owner.json", *(f"step-000000{at}" for at in ("08", "12", "15", "20"))]


def test_one_that_was_superseded_writes_nothing(tmp_path, monkeypatch):
    url = shared(tmp_path)
    monkeypatch.setenv("GFLOW_JOB_ID", "7")
    monkeypatch.setenv("GFLOW_ATTEMPT", "1")
    first = Checkpointer(url)
    first.save(1, {"a": 1}, wait=True)
    monkeypatch.setenv("GFLOW_ATTEMPT", "2")
    second = Checkpointer(url)
    second.save(2, {"a": 2}, wait=True)
    with pytest.raises(Superseded, match="attempt 2 of the job has taken over"):
        first.save(3, {"a": 3}, wait=True)
    assert names(url) == ["latest", "owner.json", "step-00000001", "step-00000002"]
    second.close()
    with pytest.raises(Superseded):
        first.close()
        first.directory.check_owner()


def test_upload_that_fails_costs_one_checkpoint(tmp_path, monkeypatch, capsys):
    url = shared(tmp_path)
    put, refused = RemoteDirectory.upload, []

    def upload(self, path, files) -> None:
        if path.endswith("08"):
            refused.append(path)
            raise OSError("connection reset")
        put(self, path, files)

    monkeypatch.setattr(RemoteDirectory, "upload", upload)
    assert train(url, tmp_path / "said") == ""
    assert refused and "no checkpoint of step 8: rank 0: connection reset" in capsys.readouterr().err
    owner = json.loads((tmp_path / "remote/owner.json").read_text())
    assert names(url)[-3:] == ["step-00000004", "step-00000012", "step-00000015"] and not owner["process"]


@pytest.mark.parametrize("is_sharded", [False, True])
def test_local_folder_that_one_rank_cannot_make_is_named_on_all(tmp_path, is_sharded):
    """As where its file system is full. The rank also cleans up behind itself, where there is nothing."""

    def act(rank: int) -> None:
        keeper = Checkpointer(shared(tmp_path))
        if rank == 1:
            tempfile.tempdir = "/dev/null"
        sharded = {"weights": torch.ones(4)} if is_sharded else None
        keeper.save(1, {"a": 1}, {"rank": rank}, sharded=sharded)
        with pytest.raises(CheckpointError, match=r"no checkpoint of step 1: rank 1: .*Not a directory"):
            keeper.wait()
        keeper.close()

    assert ranks(2, act, timeout_s=30) == [0, 0]


def test_best_checkpoint_is_kept(tmp_path):
    run = Run(shared(tmp_path), device="cpu", keep=1, keep_best=1)
    model = run.model(net())
    run.optimizer(torch.optim.SGD(model.parameters(), 0.1))
    scores = iter([0.1, 0.9, 0.3, 0.2])
    run.on_step(lambda: run.save(wait=True, score=next(scores)))
    for inputs in run.batches(run.loader(torch.randn(8, 6), 2)):
        run.backward(model(inputs).sum())
    run.export(f"{shared(tmp_path)}/weights.pt")
    run.close()
    assert (tmp_path / "remote/best").read_text() == "step-00000002"
    assert names(shared(tmp_path))[3:] == ["step-00000002", "step-00000004", "weights.pt"]
    assert "0.weight" in torch.load(tmp_path / "remote/weights.pt", weights_only=True)


@pytest.mark.parametrize(("protocol", "package"), [("s3", "s3fs"), ("gs", "gcsfs"), ("gcs", "gcsfs")])
def test_missing_package_is_named_with_the_command_that_installs_it(protocol, package, monkeypatch):
    """As fsspec finds it: the package cannot be imported."""
    monkeypatch.setitem(sys.modules, package, None)
    # The class that an earlier test has loaded.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    with pytest.raises(Refused, match=f"{protocol}:// needs {package}") as refused:
        Run(f"{protocol}://bucket/run", device="cpu")
    assert refused.value.hint == f"pip install fsspec {package}"


def test_unknown_protocol_is_named():
    with pytest.raises(CheckpointError, match="nosuch://a/b: Protocol not known"):
        Checkpointer("nosuch://a/b")


def test_slow_rank_is_waited_for_when_saving(tmp_path):
    """One rank writes for longer than the timeout of the others."""
    import time

    def act(rank: int) -> None:
        from gflow.ml.train.ranks import Ranks

        keeper = Checkpointer(tmp_path / "c", ranks=Ranks(torch.device("cpu"), timeout_s=1))
        real = keeper.directory.upload
        keeper.directory.upload = lambda path, files: (time.sleep(3 * rank), real(path, files))
        keeper.save(3, {"a": 1}, {"rank": rank})
        assert keeper.wait().step == 3
        keeper.close()
        keeper._ranks.close()

    assert ranks(2, act) == [0, 0]
