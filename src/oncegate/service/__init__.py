"""The service: events by HTTP."""
