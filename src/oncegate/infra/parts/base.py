"""Convert tags between their two formats."""

from collections.abc import Mapping


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as a list of keys and values, the format of most AWS services."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def as_mapping(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}
