"""The stages of the pipeline, each started as `python -m stages.NAME`.

Every process of ours imports this package first, those of flows/ too.
"""

import gc
import os
import sys

OF_A_REPOSITORY = (
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_OBJECT_DIRECTORY", "GIT_DIR"),
    *("GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_GRAFT_FILE", "GIT_INDEX_FILE", "GIT_NO_REPLACE_OBJECTS"),
    *("GIT_REPLACE_REF_BASE", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_COMMON_DIR"),
)
"""What `git rev-parse --local-env-vars` lists, without GIT_CONFIG_COUNT, by which a container sets `safe.directory`."""

for name in OF_A_REPOSITORY:
    os.environ.pop(name, None)  # git sets them for a hook, and they may name another repository than this project's

if sys.argv[0] == "-m":  # so it is while Python looks for the module to run
    # Imports make hundreds of thousands of objects that all stay: to look for garbage among them is a sixth of the time
    # in which a stage starts. `run_stage` has it looked for again.
    gc.disable()
