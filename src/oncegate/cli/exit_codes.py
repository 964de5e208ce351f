"""The exit codes of every command."""

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
STORE: Final = 3
NOT_FOUND: Final = 4
QUEUE: Final = 5
NOT_ONCE: Final = 6
ALREADY_PROCESSED: Final = 7
ERRORS_FOUND: Final = 10
WARNINGS_FOUND: Final = 11
LOSES_EVENTS: Final = 12
INTERRUPTED: Final = 130

MEANINGS: Final = {
    OK: "success",
    FAILED: "the command failed",
    USAGE: "invalid option, argument or setting, or unreadable input file",
    STORE: "the store cannot be used",
    NOT_FOUND: "no such key, event or dead letter",
    QUEUE: "the queue cannot be used",
    NOT_ONCE: "verify: events did not take effect exactly once",
    ALREADY_PROCESSED: "verify: the store had already processed this traffic",
    ERRORS_FOUND: "doctor, genesys check: errors found",
    WARNINGS_FOUND: "doctor, genesys check: warnings found",
    LOSES_EVENTS: "analyze: the current settings would lose events",
    INTERRUPTED: "interrupted",
}
