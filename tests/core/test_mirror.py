"""Files that grow are written where they belong, and copied whole to a bucket."""

import pytest

from headjax.core import mirror
from headjax.core.errors import HeadjaxError
from headjax.core.mirror import Mirror
from headjax.core.paths import path_of


def append(folder, text):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text)


def test_a_folder_of_this_machine_is_its_own(tmp_path):
    own = Mirror(tmp_path)
    append(own.folder, "1\n")
    assert (tmp_path / "metrics.jsonl").read_text() == "1\n"
    assert not own.is_due
    own.close()
    assert (tmp_path / "metrics.jsonl").read_text() == "1\n"


def test_a_bucket_gets_what_has_changed(bucket, monkeypatch):
    home = path_of(bucket)
    copies = Mirror(home)
    append(copies.folder, "1\n")
    assert not home.exists()
    copies.publish()
    generation = (home / "metrics.jsonl").generation
    copies.publish()
    assert (home / "metrics.jsonl").generation == generation
    append(copies.folder, "2\n")
    assert not copies.is_due
    monkeypatch.setattr(mirror, "EVERY", 0.0)
    assert copies.is_due
    copies.close()
    assert (home / "metrics.jsonl").read_text() == "1\n2\n"
    assert not copies.folder.exists()


def test_a_bucket_that_refuses_is_named(bucket):
    copies = Mirror(path_of("gs://none-such/run"))
    append(copies.folder, "1\n")
    with pytest.raises(HeadjaxError, match=r"^gs://none-such/run/metrics.jsonl: cannot be written \(no such bucket"):
        copies.close()
    assert not copies.folder.exists()
