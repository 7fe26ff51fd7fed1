"""What every test shares: nothing is sent out, and each test process uses one thread."""

import os

os.environ.update(
    {
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
)
