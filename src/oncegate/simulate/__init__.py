"""Simulated traffic with known duplicates: generate it, send it, and verify the effects."""
