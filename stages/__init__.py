"""The stages of the pipeline, each started as `python -m stages.NAME`."""

import gc
import sys

if sys.argv[0] == "-m":  # so it is while Python looks for the module to run
    # Imports make hundreds of thousands of objects that all stay: to look for garbage among them is a sixth of the time
    # in which a stage starts. `run_stage` has it looked for again.
    gc.disable()
