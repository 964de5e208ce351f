"""Addresses and connections of message buses, for workers and publishers."""
