"""Killed and stopped workers: real processes on one store, struck at named points and at random, judged in the end."""
