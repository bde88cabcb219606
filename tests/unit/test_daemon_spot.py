"""The cloud of a machine, by its vendor name."""

from __future__ import annotations

import pytest

from gflow.daemon.monitors.spot_notices import cloud_here, spot_watch_of


@pytest.mark.parametrize(
    ("maker", "product", "cloud"),
    [
        ("Amazon EC2", "p4d.24xlarge", "aws"),
        ("Google", "Google Compute Engine", "gcp"),
        ("Microsoft Corporation", "Virtual Machine", "azure"),
        ("Microsoft Corporation", "Surface Book", ""),
        ("Dell Inc.", "PowerEdge", ""),
    ],
)
def test_cloud_follows_from_the_vendor(tmp_path, maker, product, cloud):
    (tmp_path / "sys_vendor").write_text(f"{maker}\n")
    (tmp_path / "product_name").write_text(f"{product}\n")
    assert cloud_here(tmp_path) == cloud


def test_no_metadata_service_is_asked_without_a_cloud(tmp_path, monkeypatch):
    monkeypatch.setattr("gflow.daemon.monitors.spot_notices.DMI", tmp_path)
    assert cloud_here(tmp_path) == ""
    assert spot_watch_of("off", 5, print) is None
