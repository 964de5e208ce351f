"""The service receives events over HTTP."""
