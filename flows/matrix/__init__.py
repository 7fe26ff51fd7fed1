"""An experiment as plain DVC: its grid in `matrix` stages, for `dvc repro`."""
