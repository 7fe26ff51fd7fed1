"""Cells of an experiment, run side by side in one flow run."""
