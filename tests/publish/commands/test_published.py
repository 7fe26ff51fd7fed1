import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.formats.evaluation.report import Yardstick
from stages.publish.commands.published import faults, list_revisions, promote, verify
from stages.runtime.errors import RefusedError, UserError
from tests.publish.publishing import main, publish_with
from tests.trained_project import write_sections

PUBLISHED = Path("published/tiny")
MAIN = PUBLISHED / "main"
REPORT = Path("reports/evaluate.json")

Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """What a command prints, given its arguments."""

    def call(command: Callable[..., None], *arguments: Any, **options: Any) -> str:
        capsys.readouterr()
        command(*arguments, **options)
        return capsys.readouterr().out

    return call


@pytest.fixture
def three(project: Path) -> list[str]:
    """Revisions of 3, 2 and 1 bits per byte; main leads to the last."""
    return [publish_with(value, seed) for seed, value in enumerate((3.0, 2.0, 1.0))]


def test_list_names_every_revision_the_best_first_and_the_one_that_main_leads_to(
    three: list[str], printed: Printed
) -> None:
    rows = [line.split() for line in printed(list_revisions).splitlines()]

    ppmd = f"{Yardstick.read().bits_per_byte['ppmd']:g}"
    assert ["*", three[2], "1", ppmd] in [row[:4] for row in rows]
    assert [row[0] for row in rows if set(three) & {*row}] == ["*", three[1], three[0]]
    facts = list_revisions(folder=PUBLISHED)  # for other programs
    assert [one["revision"] for one in facts["revisions"]] == [three[2], three[1], three[0]]
    assert [one["is_main"] for one in facts["revisions"]] == [True, False, False]
    assert [one["bits_per_byte"] for one in facts["revisions"]] == [1, 2, 3]
    assert facts["record"] == PUBLISHED.as_posix()


def test_a_copy_with_other_file_dates_is_listed_in_the_same_way(three: list[str], printed: Printed) -> None:
    before = printed(list_revisions, folder=PUBLISHED)
    shutil.copytree(PUBLISHED, "copy", symlinks=True)
    for path in Path("copy").rglob("*"):
        path.touch()

    assert printed(list_revisions, folder=Path("copy")) == before


@pytest.mark.parametrize("given", ["", "0123456789abcdef"])
def test_a_name_that_means_no_revision_is_refused(three: list[str], printed: Printed, given: str) -> None:
    with pytest.raises(UserError, match=f"^{given}: no such revision .*; published/tiny has: {three[2]}, {three[1]}, "):
        printed(promote, given)


def test_promote_takes_the_first_digits_and_is_past_the_gate_only_if_asked(three: list[str], printed: Printed) -> None:
    with pytest.raises(RefusedError, match=r"has 3 bits per byte, main has 1; main was not moved; .*--allow-worse"):
        printed(promote, three[0])
    assert MAIN.resolve().name == three[2]

    assert "bits per byte 3, main has 1: +2\n" in printed(promote, three[0][:6], allow_worse=True)
    assert MAIN.resolve().name == three[0]
    assert "bits per byte 1, main has 3: -2\n" in printed(promote, three[2])
    assert "already" in printed(promote, "main")


def test_verify_reads_every_file(three: list[str], printed: Printed) -> None:
    assert printed(verify).count("  intact, not signed\n") == 3
    weights = PUBLISHED / "revisions" / three[0] / "model.safetensors"
    weights.unlink()
    weights.write_bytes(b"other")

    with pytest.raises(UserError, match="1 of 3 revisions are not as they were published"):
        printed(verify)
    for named in (three[1], str(PUBLISHED / "revisions" / three[1])):
        assert printed(verify, named) == f"{three[1]}  intact, not signed\n"


def test_a_revision_that_was_copied_over_another_is_not_that_one(three: list[str]) -> None:
    first, second = (PUBLISHED / "revisions" / name for name in three[:2])
    shutil.rmtree(first)
    shutil.copytree(second, first)

    (fault,) = faults(PUBLISHED, three[0])

    assert fault == f"provenance.json: belongs to {three[1]}"


def test_a_copy_that_did_not_keep_the_links_is_named_and_repaired_as_it_says(
    three: list[str], printed: Printed
) -> None:
    target = MAIN.resolve()
    MAIN.unlink()
    shutil.copytree(target, MAIN)

    for command in (lambda: printed(list_revisions), main):
        with pytest.raises(UserError, match=r"tiny/main: is no longer a link: a copy of published/tiny lost it"):
            command()

    shutil.rmtree(MAIN)
    printed(promote, three[2])
    assert MAIN.resolve() == target


def test_with_a_key_a_revision_without_a_signature_is_not_as_it_should_be(
    three: list[str], printed: Printed, tmp_path: Path
) -> None:
    (tmp_path / "key.pub").write_text("ssh-ed25519 AAAA")

    with pytest.raises(UserError, match="1 of 1 revisions are not as they were published, or not signed with that key"):
        printed(verify, three[0], key=tmp_path / "key.pub")


def test_without_a_folder_of_revisions_one_line_says_why(project: Path, printed: Printed) -> None:
    with pytest.raises(UserError, match="published/tiny: nothing has been published here yet"):
        printed(list_revisions)
    write_sections(project, publish__repository="me/tiny")

    with pytest.raises(
        UserError, match=r"publish.repository is me/tiny, so its revisions are at https://huggingface.co/me/tiny"
    ):
        printed(list_revisions)
