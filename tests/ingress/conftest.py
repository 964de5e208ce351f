"""A gate on a fresh memory store with a manual clock, and a store that fails on demand."""

from tests.gate.conftest import clock, gate, store, stumbling

__all__ = ["clock", "gate", "store", "stumbling"]
