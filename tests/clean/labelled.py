"""Small labelled documents: sentences about a garden, and advertisements."""

GOOD = ("the gardener", "a careful reader", "our teacher", "the old sailor")
DOES = ("explained why", "wrote down how", "showed us where", "remembered when")
WHAT = ("the roses grow in spring", "rain fills the river", "bread is baked at night", "the boats come home")

OFFER = ("BUY NOW", "click here", "FREE offer", "limited deal")
THING = ("cheap watches", "casino bonus", "miracle pills", "followers")


def labelled_documents(count: int) -> list[tuple[str, bool]]:
    """`count` good documents and as many bad ones, in turn, all different."""
    documents = []
    for number in range(count):
        first, second, third = number % 4, number // 4 % 4, number // 16 % 4
        documents.append((f"On day {number} {GOOD[first]} {DOES[second]} {WHAT[third]}.", True))
        documents.append((f"{OFFER[first]} {number} {THING[second]}!!! {OFFER[third]} {THING[first]} www", False))
    return documents
