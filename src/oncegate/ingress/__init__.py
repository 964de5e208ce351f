"""Work: events that are waited for and taken in many at a time, by a worker of a queue or of the inbox."""
