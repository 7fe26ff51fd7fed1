"""The curves of a run that stops and continues."""

from pathlib import Path

from stages.formats.curves import read_curves
from stages.train.checkpoint.curves import CurveFiles


def test_a_run_that_continues_takes_the_curves_of_its_checkpoint(tmp_path: Path) -> None:
    """The live file lost its end in a power failure."""
    curves, checkpoint = CurveFiles(tmp_path / "live"), tmp_path / "checkpoint"
    checkpoint.mkdir()
    curves.restart()
    for step in (5, 10):
        curves.append("training_loss", step, {"training_loss": 1.0 / step})
    curves.copy_to(checkpoint)
    (tmp_path / "live/training_loss.tsv").write_text("step\ttraining_loss\n5\t0.2\n")
    curves.restore(checkpoint)
    assert (tmp_path / "live/training_loss.tsv").read_text() == "step\ttraining_loss\n5\t0.2\n10\t0.1\n"


def test_held_out_curves_of_other_tokens_are_not_continued(tmp_path: Path) -> None:
    curves, checkpoint = CurveFiles(tmp_path / "live"), tmp_path / "checkpoint"
    checkpoint.mkdir()
    curves.append("validation_loss", 5, {"validation_loss": 2.0})
    curves.append("validation_bits_by_source", 5, {"a\tb": 1.5, "c": 1.25})
    curves.append("training_loss", 5, {"training_loss": 1.0})
    curves.copy_to(checkpoint)

    curves.restore(checkpoint, with_held_out=False)

    assert [path.name for path in curves.folder.iterdir()] == ["training_loss.tsv"]
    assert read_curves(checkpoint / "validation_bits_by_source.tsv") == {"a\tb": [(5.0, 1.5)], "c": [(5.0, 1.25)]}
