"""The exit codes of every command."""

OK = 0
FAILED = 1  # something that was asked for could not be done
USAGE = 2  # the command, an option or a setting cannot be meant
STORE = 3  # the store cannot be used, or not now
NOT_FOUND = 4  # there is no such key, event or dead letter
QUEUE = 5  # the queue cannot be worked on
NOT_ONCE = 6  # what took effect is not what happened, each once
ERRORS_FOUND = 10  # doctor: events are lost, or take effect twice
WARNINGS_FOUND = 11  # doctor: they are when something else goes wrong
INTERRUPTED = 130  # stopped by Ctrl-C
