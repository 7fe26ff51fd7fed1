"""Cells of an experiment, run side by side by one scheduler."""
