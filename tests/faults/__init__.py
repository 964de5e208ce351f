"""Faults on every durable store: workers killed and stopped, networks cut, servers restarted, and the history of it."""
