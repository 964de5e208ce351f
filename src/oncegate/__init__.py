"""Oncegate makes every contact-centre event take effect once, however often it is delivered."""

from oncegate import keys
from oncegate.errors import OncegateError
from oncegate.events import Event
from oncegate.gate import Gate, Outcome
from oncegate.sources import read
from oncegate.stores import open_store

__all__ = ["Event", "Gate", "OncegateError", "Outcome", "keys", "open_store", "read"]

__version__ = "0.1.0"
