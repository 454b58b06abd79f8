"""Directories of which each version is told from every other, that tests of replacing and of reading share."""

from headjax.storage.directories import Layout, check_checksums, write_checksums, write_directory

LAYOUT = Layout("history.json", frozenset({"config.json", "history.json", "checksums.json"}))


def writer(version):
    """A function that fills a folder with files of a version."""

    def write(folder):
        for name in ("config.json", "history.json"):
            (folder / name).write_text(f"{version} " * 1000)
        write_checksums(folder)

    return write


def version_of(path):
    """The version of a folder, which is whole and of one version."""
    check_checksums(path)
    texts = {(path / name).read_text() for name in ("config.json", "history.json")}
    assert len(texts) == 1
    return int(next(iter(texts)).split()[0])


def save(path, version):
    """Write a version."""
    write_directory(path, writer(version), LAYOUT)
