"""Memory settings of frameworks on a shared GPU, and whether a PyTorch understands them."""

from __future__ import annotations

import pytest

from gflow.gpu.frameworks import shared_environment, torch_takes_fraction, with_fraction


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", "per_process_memory_fraction:0.2500"),
        ("expandable_segments:True", "expandable_segments:True,per_process_memory_fraction:0.2500"),
        (
            "roundup_power2_divisions:[256:1,512:2,>:8],max_split_size_mb:128",
            "roundup_power2_divisions:[256:1,512:2,>:8],max_split_size_mb:128,per_process_memory_fraction:0.2500",
        ),
        ("per_process_memory_fraction:0.9", "per_process_memory_fraction:0.2500"),
        ("per_process_memory_fraction:0.1", "per_process_memory_fraction:0.1"),
        ("per_process_memory_fraction:x,backend:native", "backend:native,per_process_memory_fraction:0.2500"),
    ],
)
def test_user_settings_are_kept(said, expected):
    assert with_fraction(said, "0.2500") == expected


def test_the_context_is_left_out_of_the_fraction():
    told = shared_environment(20 << 10, [80 << 10], {}, torch=True)
    assert told["PYTORCH_CUDA_ALLOC_CONF"] == "per_process_memory_fraction:0.2422"
    assert told["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.2422"
    assert told["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert told["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_a_small_limit_is_still_something():
    assert shared_environment(512, [1024], {}, torch=False)["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.2500"


def test_the_biggest_card_decides():
    told = shared_environment(20 << 10, [24 << 10, 80 << 10], {}, torch=False)
    assert told["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.2422"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in told


def test_both_names_where_the_user_has_the_newer_one():
    environ = {"PYTORCH_ALLOC_CONF": "backend:native"}
    told = shared_environment(1 << 10, [4 << 10], environ, torch=True)
    assert told["PYTORCH_ALLOC_CONF"] == told["PYTORCH_CUDA_ALLOC_CONF"]
    assert told["PYTORCH_ALLOC_CONF"].startswith("backend:native,per_process_memory_fraction:")


class TestPyTorch:
    @pytest.fixture
    def install(self, tmp_path):
        def make(name, text):
            prefix = tmp_path / name
            for folder in ("bin", "lib/python3.12/site-packages/torch/lib"):
                (prefix / folder).mkdir(parents=True)
            python = prefix / "bin/python3"
            python.touch(mode=0o755)
            if text is not None:
                (prefix / "lib/python3.12/site-packages/torch/lib/libc10_cuda.so").write_bytes(text)
            return prefix

        return make

    NEW = b"\0garbage_collection_threshold\0per_process_memory_fraction\0"
    OLD = b"\0garbage_collection_threshold\0"

    @pytest.mark.parametrize(("text", "knows"), [(NEW, True), (OLD, False), (None, False), (b"", False)])
    def test_installed_torch_is_inspected(self, install, tmp_path, text, knows):
        prefix = install("venv", text)
        assert torch_takes_fraction(("python3", "x.py"), {"PATH": f"{prefix}/bin"}, "/") == knows

    def test_torch_is_found_beside_the_program(self, install, tmp_path):
        prefix = install("venv", self.NEW)
        assert torch_takes_fraction((f"{prefix}/bin/torchrun", "x.py"), {"PATH": "/nowhere"}, "/")
        assert torch_takes_fraction(("venv/bin/python", "x.py"), {"PATH": "/nowhere"}, str(tmp_path))

    def test_one_old_torch_disables_the_fraction(self, install):
        new, old = install("new", self.NEW), install("old", self.OLD)
        environ = {"PATH": f"{new}/bin"}
        assert torch_takes_fraction(("bash", "-c", "python3 x.py"), environ, "/")
        assert not torch_takes_fraction((f"{old}/bin/python", "x.py"), environ, "/")

    def test_missing_torch_disables_the_fraction(self, tmp_path):
        assert not torch_takes_fraction(("python3",), {"PATH": str(tmp_path)}, "/")
