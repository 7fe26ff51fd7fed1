"""Model + held-out data -> metrics: `python -m stages.evaluate`.

`PARROTFLOW_EVALUATE_BATCH` is the number of windows per forward pass. It changes time and memory, not the result.
"""

import stages.evaluate.libraries  # noqa: F401 (before torch)

# isort: split

from collections.abc import Sequence
from pathlib import Path

from stages.evaluate.likelihood.answers import answer_set, answers_note
from stages.evaluate.likelihood.documents import named_set, validation_split
from stages.evaluate.likelihood.report import (
    evaluation,
    evaluation_receipt,
    held_out_metrics,
    lost_text,
    trained_on,
    write_document_losses,
)
from stages.evaluate.likelihood.score import ScoredSet, baseline_models, score_sets, trained_model
from stages.evaluate.params import EvaluateParams
from stages.formats.documents import CLEAN
from stages.formats.evaluation.report import LOSS_BY_POSITION, HeldOutMetrics, write_loss_by_position
from stages.formats.reports import write_metrics
from stages.formats.tokens import VALIDATION
from stages.runtime.atomic import atomic_folder
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage
from stages.runtime.stage_code import require_locked


def main() -> None:
    params = read_section("evaluate", EvaluateParams)
    require_locked("tokenizers")  # transformers reads tokenizers with it
    sets = [validation_split(CLEAN / VALIDATION)]
    sets += [named_set(name, Path(file)) for name, file in params.sets.items()]
    sets += [answer_set(name, Path(file)) for name, file in params.answers.items()]
    trained = trained_model(params)
    models = [trained, *baseline_models(params.baselines, trained)]

    scored = score_sets(models, sets)
    measured = {held_out.name: measure(held_out.name, scored) for held_out in sets}

    ours = scored[: len(sets)]
    notes = [*lost_text(scored), *trained_on(sets[1:]), *answers_note(params.answers)]
    for note in notes:
        print(f"note: {note}", flush=True)
    report = evaluation(measured, evaluation_receipt(ours, models, notes))
    report.write()
    held_out = {"bits_per_byte": report.bits_per_byte, "loss": report.loss, "perplexity": report.perplexity}
    answers = {name: report.sets[name].bits_per_byte for name in params.answers}
    write_metrics("evaluate", {**held_out, "answers_bits_per_byte": answers or None})
    write_document_losses(scored)
    with atomic_folder(LOSS_BY_POSITION) as folder:
        for scored_set in ours:
            write_loss_by_position(folder, scored_set.held_out.name, scored_set.by_position)


def measure(set_name: str, scored: Sequence[ScoredSet]) -> HeldOutMetrics:
    """The metrics of the trained model on one set, compared with those of the baselines."""
    ours, *baselines = (scored_set for scored_set in scored if scored_set.held_out.name == set_name)
    return held_out_metrics(ours.scores, ours.lost_share, {theirs.model.name: theirs.scores for theirs in baselines})


if __name__ == "__main__":
    run_stage(main)
