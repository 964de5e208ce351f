"""The gate and its outcomes."""

from oncegate.gate.gate import Gate
from oncegate.gate.log import JsonLog
from oncegate.gate.observing import Notice
from oncegate.gate.outcome import Outcome

__all__ = ["Gate", "JsonLog", "Notice", "Outcome"]
