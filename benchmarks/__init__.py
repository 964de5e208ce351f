"""Measure the cost of Oncegate as ratios to the raw limits of this machine."""
