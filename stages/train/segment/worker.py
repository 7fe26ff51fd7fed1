"""One process that computes a piece of a segment again; `python -m stages.train.segment` starts it.

The same loop as the training's, without evaluations, curves and trackers.
"""

from itertools import groupby
from operator import attrgetter

from accelerate import Accelerator

from stages.formats.model_folder import weights_sha256
from stages.formats.splits import VALIDATION
from stages.formats.tokens import TOKENS, TokenStore
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import EXIT_TERMINATED, UserError
from stages.runtime.launch.supervision import follow_command
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.content import content_sha256
from stages.train.checkpoint.fingerprint import IDENTITY, changes_since, fingerprint
from stages.train.checkpoint.manifest import Progress, fault
from stages.train.checkpoint.mirror import Mirror
from stages.train.distributed.agreement import finish_together, on_main
from stages.train.launch.section import section_of_command
from stages.train.loop import StopSignal, Trainer
from stages.train.model.export import full_model, save_model
from stages.train.monitoring.execution import describe_session
from stages.train.monitoring.progress import ProgressLine
from stages.train.monitoring.report import seconds_left
from stages.train.segment.task import FOUND, REASON, Found, Task, given_task
from stages.train.worker import build_trainer, compile_and_spread, run_identity, run_worker, start_accelerator


def main() -> None:
    """What one process does."""
    follow_command()
    stop = StopSignal()
    task, params = given_task(), section_of_command()
    accelerator = start_accelerator(params)
    try:
        trainer = build_trainer(params, accelerator, stop)
        check_run(task, trainer)
        on_main(accelerator, lambda: check_start(task))
        checkpoints = Checkpoints(task.scratch / "checkpoints", accelerator, params, Mirror(task.fingerprint))
        if accelerator.is_main_process:
            checkpoints.curves.restart()
        if task.checkpoint is not None:
            checkpoints.load(task.checkpoint, trainer.eager, trainer.optimizers)
        trainer = compile_and_spread(trainer, checkpoints.history.sessions)
        contents = recompute(task, trainer, checkpoints)
    except UserError as error:
        # The command says it, with its verdict.
        (task.scratch / REASON).write_text(str(error), encoding="utf-8")
        raise SystemExit(error.exit_code) from None
    weights = export(task, trainer) if max(contents) == task.max_steps else None
    finish_together(accelerator)
    if accelerator.is_main_process:
        found = Found(session=describe_session(trainer, task.first + 1), contents=contents, weights=weights)
        atomic_write(task.scratch / FOUND, found.model_dump_json())
    raise SystemExit(0)


def check_run(task: Task, trainer: Trainer) -> None:
    """Raise UserError where the working tree would compute another run than the recorded one."""
    stores = [trainer.store, TokenStore(TOKENS / VALIDATION)]
    run = run_identity(trainer.params, trainer.accelerator, stores)
    if fingerprint(run) != task.fingerprint or trainer.params.max_steps != task.max_steps:
        changes = changes_since(task.run / IDENTITY, run) if (task.run / IDENTITY).exists() else []
        if trainer.params.max_steps != task.max_steps:
            changes.append(f"train.max_steps: {task.max_steps} -> {trainer.params.max_steps}")
        raise UserError(
            f"the working tree is not that of the recorded run ({'; '.join(changes) or 'its fingerprint differs'}); "
            "check out the run's commit and data first, as `parrotflow reproduce` does"
        )
    on_main(trainer.accelerator, trainer.store.verify)


def check_start(task: Task) -> None:
    """Raise UserError where the first checkpoint is damaged, or not the recorded one."""
    if task.checkpoint is None:
        return
    problem = fault(task.checkpoint)
    if not problem and (found := content_sha256(task.checkpoint)) != (recorded := task.recorded[task.first]):
        problem = f"it is not the recorded one: its content is {found[:16]}, recorded is {recorded[:16]}"
    if problem:
        raise UserError(f"{task.checkpoint}: {problem}")


def recompute(task: Task, trainer: Trainer, checkpoints: Checkpoints) -> dict[int, str]:
    """Train, and return the content at each recorded step, up to the first one that is not as recorded."""
    params, contents = trainer.params, dict[int, str]()
    line = ProgressLine(task.last, trainer.accelerator.is_main_process)
    trainer.throughput.restart()
    for step, batches in groupby(trainer.micro_batches(task.first), key=attrgetter("step")):
        result = trainer.step(step, batches)
        done = step + 1
        if result.stop_votes.item() > 0:
            raise SystemExit(EXIT_TERMINATED)
        left = seconds_left(params, task.first, done, task.last, trainer.throughput.seconds)
        line.show(done, result.loss.item(), trainer.throughput.tokens_per_second, left)
        if done in task.recorded:
            progress = Progress(
                done, result.loss.item(), params.max_steps, params.log_every_steps, params.evaluate_every_steps
            )
            checkpoints.save(progress, trainer.eager, trainer.optimizers)
            if not checkpoints.wait():
                raise UserError(f"{task.scratch}: the state after step {done} could not be written")
            contents[done] = content_of(checkpoints, done, trainer.accelerator)
            if done == task.last or contents[done] != task.recorded[done]:
                break
    return contents


def content_of(checkpoints: Checkpoints, step: int, accelerator: Accelerator) -> str:
    """The content of a checkpoint that was just written, on every process."""
    return on_main(accelerator, lambda: checkpoints.history.contents[step])


def export(task: Task, trainer: Trainer) -> str | None:
    """The sha256 of the weights as the run's last step writes them; None on other processes than the main one."""
    model = full_model(trainer.eager, trainer.accelerator, trainer.params, trainer.store.manifest)
    if model is None:
        return None
    folder = task.scratch / "model"
    folder.mkdir()
    save_model(model, folder)
    return weights_sha256(folder)


if __name__ == "__main__":
    run_worker(main)
