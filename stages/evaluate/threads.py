"""How OpenMP's threads wait for each other on a CPU. Import this before torch, which loads OpenMP.

As the training's launcher sets it: threads spin for about 0.1 ms and then sleep. Threads that spin on are as fast on
idle cores, but wait for each other for long where anything else runs there: the same evaluation, four times each on
2 busy cores, took 10 to 113 s with OpenMP's defaults and 10 to 26 s with these settings. What a user has set is kept.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
