"""Simulated traffic whose truth is known, where it is sent to, and what is to be seen of it afterwards."""
