"""The gate and its outcomes."""

from oncegate.gate.gate import Gate
from oncegate.gate.observers import JsonLog, Notice
from oncegate.gate.outcome import Outcome

__all__ = ["Gate", "JsonLog", "Notice", "Outcome"]
