"""The law behind the dial: `python experiments/dial.py` fits it to dial/runs.csv and writes dial/valley.json.

    log y = k0 + k1 log x + k2 log z + k3 (log z)^2 + k4 log x log z + k5 (log x)^2

x is compute in TFLOP, z compute per token in MFLOP, y bits per byte. At each compute log y is a parabola in log z whose
bottom moves with compute: the "IsoFLOP profiles" of Hoffmann et al. 2022, section 3.2, all in one least squares. The
bottom is at z = exp(-k2 / 2 k3) x^b with b = -k4 / 2 k3. The intervals are those of a linear regression: they cover the
seeds and how far runs are from the law, not whether it holds beyond them. stages/train/dial.py has the coefficients.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

FOLDER = Path(__file__).parent / "dial"

SIZES = {"8 TFLOP, width 64": (8.0, 1.736)}
"""TFLOP and MFLOP per token whose bits per byte are predicted, each with the 95 % interval of one run."""

Values = npt.NDArray[np.float64]


def terms(x: Any, z: Any) -> Values:
    """The six terms of the law."""
    u, v = np.log(x), np.log(z)
    return np.stack([np.ones_like(u), u, v, v * v, u * v, u * u], axis=-1)


def fit(runs: pd.DataFrame) -> dict[str, Any]:
    """The law of runs with the columns x, z and y, its exponent and its predictions."""
    runs = runs.sort_values(["x", "z"])
    design, log_y = terms(runs["x"].to_numpy(), runs["z"].to_numpy()), np.log(runs["y"].to_numpy())
    k = np.linalg.lstsq(design, log_y, rcond=None)[0]
    rest = log_y - design @ k
    variance = float(rest @ rest) / (len(runs) - len(k))
    covariance = variance * np.linalg.inv(design.T @ design)
    t = float(stats.t.ppf(0.975, len(runs) - len(k)))
    b = -k[4] / (2 * k[3])
    slope = np.array([0, 0, 0, k[4] / (2 * k[3] ** 2), -1 / (2 * k[3]), 0])
    half = t * float(slope @ covariance @ slope) ** 0.5
    predictions = {}
    for name, (x, z) in SIZES.items():
        at = terms(x, z)
        value, spread = float(np.exp(at @ k)), t * float(variance + at @ covariance @ at) ** 0.5
        interval = [value * float(np.exp(-spread)), value * float(np.exp(spread))]
        best = float(np.exp(-k[2] / (2 * k[3])) * x**b)
        predictions[name] = {"at": [x, z], "value": value, "interval_95": interval, "best_z": best}
    exponent = {"b": float(b), "b_interval_95": [float(b - half), float(b + half)]}
    return {"coefficients": k.tolist(), **exponent, "predict": predictions, "runs": len(runs)}


def main() -> None:
    """Fit the law to the finished runs and write it."""
    runs = pd.read_csv(FOLDER / "runs.csv").dropna(subset=["bits_per_byte"])
    runs = runs.rename(columns={"compute (TFLOP)": "x", "bits_per_byte": "y"})
    found = fit(runs.assign(z=runs["x"] / runs["tokens (M)"]))
    (FOLDER / "valley.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"best size: x^{found['b']:.3f} {found['b_interval_95']}; {found['runs']} runs; {found['predict']}")


if __name__ == "__main__":
    main()
