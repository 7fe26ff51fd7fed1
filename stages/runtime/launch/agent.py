"""`accelerate launch`, silent where another machine has left torchrun's exit barrier first.

The barrier's store lives in the main machine's agent. The last machine to arrive lets that agent go, and then reads the
store once more, which may be gone by then (torch 2.13, torch/distributed/elastic/utils/store.py, `barrier`). All
workers have ended and nothing is lost, but torchrun logs a traceback.
"""

import logging

LOGGER = "torch.distributed.elastic.agent.server.api"
MESSAGE = "Error waiting on exit barrier"


def main() -> None:
    """Run `accelerate launch` with the arguments of this command."""
    from accelerate.commands.launch import main as accelerate_launch

    logging.getLogger(LOGGER).addFilter(is_not_the_store_of_a_barrier_that_was_left)
    accelerate_launch()


def is_not_the_store_of_a_barrier_that_was_left(record: logging.LogRecord) -> bool:
    """Whether a record of torchrun's agent is to be shown."""
    from torch.distributed import DistNetworkError

    gone = record.exc_info is not None and isinstance(record.exc_info[1], DistNetworkError)
    return not (gone and record.msg.startswith(MESSAGE))


if __name__ == "__main__":
    main()
