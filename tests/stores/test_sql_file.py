"""Named sections of a `.sql` file."""

from oncegate.stores.sql_file import read_sql, sections


def test_sections() -> None:
    """A section starts at its name, ends at the next name, and has no comment lines."""
    text = """\
-- About the file.
SELECT 'before the first name';

-- About the first.
-- name: first
SELECT 1;
-- About the second statement.
SELECT 2;

-- name: the second
SELECT '-- name: ' -- not at the start of a line
FROM t;
"""
    assert sections(text) == {
        "first": "SELECT 1;\nSELECT 2;",
        "the second": "SELECT '-- name: ' -- not at the start of a line\nFROM t;",
    }


def test_a_file_without_sections() -> None:
    """Text without a name has no sections."""
    assert sections("-- nothing here\nSELECT 1;\n") == {}


def test_packaged_files() -> None:
    """The package contains the files of both SQL stores."""
    for package, name in (("oncegate.stores.sqlite", "tick"), ("oncegate.stores.postgres", "schema 1")):
        assert sections(read_sql(package))[name]
