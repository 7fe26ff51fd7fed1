"""The curves of a run that stops and continues."""

from pathlib import Path

from stages.train.checkpoint.curves import CurveFiles


def test_a_run_that_continues_takes_the_curves_of_its_checkpoint(tmp_path: Path) -> None:
    """The live file lost its end in a power failure."""
    curves, checkpoint = CurveFiles(tmp_path / "live", ["adamw"]), tmp_path / "checkpoint"
    checkpoint.mkdir()
    curves.restart()
    for step in (5, 10):
        curves.append("training_loss", step, 1.0 / step)
    curves.copy_to(checkpoint)
    (tmp_path / "live/training_loss.tsv").write_text("step\ttraining_loss\n5\t0.2\n")
    curves.restore(checkpoint)
    assert (tmp_path / "live/training_loss.tsv").read_text() == "step\ttraining_loss\n5\t0.2\n10\t0.1\n"
