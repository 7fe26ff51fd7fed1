"""The curves of a run that stops and continues."""

from pathlib import Path

from stages.train.monitoring.report import CurveFiles
from stages.train.params import TrainParams
from tests.train.small_run import params


def test_a_run_that_continues_takes_the_curves_of_its_checkpoint(tmp_path: Path) -> None:
    """The live file lost its end in a power failure: the checkpoint's copy counts, half a line does not."""
    curves, checkpoint = CurveFiles(tmp_path / "live", ["adamw"]), tmp_path / "checkpoint"
    checkpoint.mkdir()
    curves.restart()
    for step in (5, 10, 15):
        curves.append("training_loss", step, 1.0 / step)
    curves.copy_to(checkpoint)
    with (checkpoint / "training_loss.tsv").open("a") as file:
        file.write("2")
    (tmp_path / "live/training_loss.tsv").write_text("step\ttraining_loss\n5\t0.2\n")
    curves.restore(checkpoint, 10, TrainParams.model_validate(params(log_every_steps=5)))
    assert (tmp_path / "live/training_loss.tsv").read_text() == "step\ttraining_loss\n5\t0.2\n10\t0.1\n"


def test_the_learning_rate_has_a_column_for_each_optimizer_that_trains(tmp_path: Path) -> None:
    rates = {"optimizer__adamw_learning_rate": 0.003, "optimizer__muon_learning_rate": 0.004}
    for name, lines in (
        ("muon", ["step\tadamw\tmuon", "5\t0.003\t0.004"]),
        ("adamw", ["step\tadamw", "5\t0.003"]),
    ):
        peaks = TrainParams.model_validate(params(**rates, optimizer__name=name)).optimizer.peaks
        curves = CurveFiles(tmp_path / name, peaks)
        curves.restart()
        curves.append("learning_rate", 5, *peaks.values())
        assert (tmp_path / name / "learning_rate.tsv").read_text().splitlines() == lines
