"""The end of the default run, as README.md shows it."""

from benchmarks.default_run import LISTING, listing_of

OUTPUT = """\
first run here: all stages run (collect, train)

  collect │ ran in 1.1 s

stage    result  seconds
collect  ran         1.1
train    ran       106.7

141 s in total. bits per byte 1.498
"""


def test_it_is_the_table_of_the_stages_and_all_that_follows() -> None:
    listing = listing_of(OUTPUT.replace("seconds\n", "seconds   \n"))

    assert listing == OUTPUT[OUTPUT.index("stage ") :]


def test_it_replaces_the_one_that_readme_shows_and_nothing_else() -> None:
    readme = "It ends so:\n\n```\nstage  result  seconds\ncode   ran         9.9\n```\n\n```\nstage  state  why\n```\n"

    assert LISTING.sub(lambda _: "new\n", readme) == "It ends so:\n\n```\nnew\n```\n\n```\nstage  state  why\n```\n"
