"""What the code is: closures, keys, and hashes of syntax trees."""

import subprocess
from pathlib import Path

import pytest

from stages.runtime.code import CodeFiles, read_module
from stages.runtime.errors import UserError


def write(root: Path, **files: str) -> Path:
    """Modules of a package `stages`: `toy__one="..."` is stages/toy/one.py; an `__init__` is only written if given."""
    for name, text in files.items():
        path = root / "stages" / Path(*name.split("__", 1)).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_closure_follows_imports_of_every_form(tmp_path: Path) -> None:
    write(
        tmp_path,
        toy____main__="import numpy\nfrom stages.toy import one\nfrom stages.toy.two import x\nimport stages.toy.three",
        toy__one="def later():\n    from stages.formats import six\n",
        toy__two="from . import four\n",
        toy__three="from .five import x\n",
        toy__four="",
        toy__five="COMMAND = ['-m', 'stages.toy.seven']\n",
        toy__seven="",
        toy__unused="",
        formats__six="",
    )

    found = CodeFiles(tmp_path).closure_of("stages.toy")

    names = ("__main__", "five", "four", "one", "seven", "three", "two")
    assert found == ["stages/formats/six.py", *(f"stages/toy/{name}.py" for name in names)]


def test_of_packages_their_commands_named_in_strings_and_each_init_with_code_count(tmp_path: Path) -> None:
    write(tmp_path, toy____main__="run('stages.toy.deep')", toy____init__="")
    (tmp_path / "stages/toy/deep").mkdir()
    (tmp_path / "stages/toy/deep/__main__.py").write_text("import stages.toy.deep.down")
    (tmp_path / "stages/toy/deep/__init__.py").write_text("X = 1\n")
    (tmp_path / "stages/toy/deep/down.py").write_text("")

    found = CodeFiles(tmp_path).closure_of("stages.toy")

    assert found == [*(f"stages/toy/{name}.py" for name in ("__main__", "deep/__init__", "deep/__main__", "deep/down"))]


def test_modules_whose_names_are_known_only_at_run_time_are_all_of_their_package(tmp_path: Path) -> None:
    write(tmp_path, toy____main__='for name in found:\n    import_module(f"stages.toys.{name}")\n')
    write(tmp_path, toys____init__="", toys__one="import stages.toys.two", toys__two="")

    assert CodeFiles(tmp_path).closure_of("stages.toy")[1:] == ["stages/toys/one.py", "stages/toys/two.py"]


def test_code_that_is_not_python_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, toy____main__="import stages.toy.one", toy__one="x = 1\ny = (\n")

    with pytest.raises(UserError, match=r"stages/toy/one.py: line 2: '\(' was never closed; correct it first"):
        CodeFiles(tmp_path).closure_of("stages.toy")


ROOT = Path(__file__).parents[2]

SYNTAX = '''\
from __future__ import annotations
import a.b as c, d
from . import e
from ..f import (g as h, i)


@d.decorated(1, *(2,), key=None, **{})
class K[T](h, metaclass=type):
    """A docstring."""

    x: int = 1
    "About x."
    y: list[int]
    z = w = -0.5e-3, 1j, 0x_ff, ..., b"\\xff", "\\u1e9e\\U0001fae8", u"u", None, True, 10**40

    async def m(self, p, /, q: int = 1, *r: str, s, t: float = 2.5, **u) -> tuple[int, ...]:
        """A docstring."""
        async with d as (v, w), c:
            await v
        async for v in w:
            yield v
        return [x async for x in w if x if not x], {**u, "k": 1}, {1, 2}, {k: v for k, v in u.items()}


def f(a, *, b=lambda *c, d=1: (c, d)):
    global G
    try:
        if (n := a[1:2, ::3, ...]) and not a <= b < 3 != 4 is not None in [1]:
            del a[0], a.b
        elif a:
            pass
        else:
            raise ValueError(f"a {a!r:>{b}} b {a=} {'x' 'y'}" "z" f"{b:%Y-%m}{a:}{b!s:{a}{b}}{{}}") from None
    except* (OSError, ValueError) as error:
        print(error, sep="" if a else "\\n")
    else:
        assert a, "message"
    finally:
        for i, *j in a @ b // 2 % 3 << 1 | 2 ^ 3 & ~4:
            continue
        else:
            G += 1
    while True:
        break
    def inner():
        nonlocal n
        n = yield
        yield from n
    match a:
        case {"k": [1, -2.5 + 1j, *rest], **others} | K(x, y=None) if x:
            pass
        case [None | True, "s" as s, _, (a.b)]:
            pass
        case _:
            "no docstring, and without effect"
'''
PLAIN = SYNTAX.replace("class K[T]", "class K")
"""As Python 3.11 reads it: without parameters of types."""

SHA256 = "3ca8a457f08c35c1c5d8f26b64a6229e"
"""Another value reruns every stage of everybody, and no older revision can be reproduced any more."""


def other_pythons() -> list[Path]:
    """Those on this machine from 3.12 on, as far as pyenv or Debian has installed them."""
    found = [*Path.home().glob(".pyenv/versions/*/bin/python3.1[0-9]"), *Path("/usr/bin").glob("python3.1[0-9]")]
    return [path for path in found if int(path.name.removeprefix("python3.")) > 11]


def test_the_hash_of_a_syntax_tree_is_this_on_every_python() -> None:
    assert read_module(PLAIN.encode(), "stages/x/y.py").sha256 == SHA256

    code = "import sys; from stages.runtime.code import read_module; "
    code += "print(read_module(sys.stdin.buffer.read(), 'stages/x/y.py').sha256)"
    for python in other_pythons():
        done = subprocess.run([python, "-c", code], cwd=ROOT, input=PLAIN.encode(), capture_output=True, check=True)
        assert done.stdout.decode().strip() == SHA256, python


def test_comments_docstrings_and_formatting_have_no_meaning() -> None:
    def sha256(text: str) -> str:
        return read_module(text.encode(), "stages/x.py").sha256

    plain = "class A:\n    x = 1\n\n    def f(self):\n        return 'text'\n"
    remarked = plain.replace("x = 1", "x=1  # one\n    'About x.'").replace("return", "'About f.'\n        return")

    assert sha256(plain) == sha256(remarked) == sha256('"""About all."""\n' + plain)
    others = [
        plain.replace("'text'", other) for other in ("'other'", "b'text'", "None", "'None'", "f'text'", "text", "1")
    ]
    assert len({sha256(text) for text in (plain, *others, plain.replace("x = 1", "x: 1"))}) == len(others) + 2


def test_a_module_says_what_it_imports_and_which_libraries_it_requires() -> None:
    found = read_module(
        b"import numpy.linalg\n"
        b"from . import near\n"
        b"def later():\n"
        b"    from stages.formats import six\n"
        b"    import_module(f'detect_secrets.plugins.{name}')\n"
        b"    require_locked('torch', *(['ray'] if many else []))\n"
        b"    return ['-m', 'stages.toy.seven', 'not stages.x']\n",
        "stages/toy/one.py",
    )

    assert found.imports == {
        *("numpy.linalg", "stages.toy", "stages.toy.near", "stages.formats", "stages.formats.six"),
        *("detect_secrets.plugins.", "stages.toy.seven", "stages.toy.seven.__main__"),
    }
    assert found.required == {"torch", "ray"}
